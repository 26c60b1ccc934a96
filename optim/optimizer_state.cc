// What an optimizer saves in checkpoints, and what it loads.
#include <algorithm>
#include <cstring>
#include <exception>
#include <map>

#include "kernels/ema/ema.h"
#include "optim/optimizer.h"

namespace lockstep::optim {
namespace {

constexpr char kAverage[] = ".ema";

bool IsAverage(const std::string& name) { return name.ends_with(kAverage); }

}  // namespace

void Optimizer::ForEachState(
    const std::function<void(const std::string&, const Parameter&, const Tensor&)>& f) const {
  if (settings_.offload.to_host && host_updates_) Synchronize(CurrentStream(trained_[0].device));
  for (size_t rule = 0; rule < settings_.rules.size(); ++rule) {
    const std::vector<std::string>& names = settings_.rules[rule].states;
    for (size_t i = 0; i < trained_.size(); ++i) {
      if (trained_[i].rule != rule) continue;
      const UpdateTensors& t = trained_[i].tensors;
      const Parameter& p = *parameters_[i];
      for (size_t k = 0; k < names.size(); ++k) f(p.name() + "." + names[k], p, t.states[k]);
      if (t.master.defined()) f(p.name() + ".master", p, t.master);
      if (t.average.defined()) f(p.name() + kAverage, p, t.average);
    }
  }
}

NamedTensors Optimizer::NamedState() const {
  NamedTensors out;
  ForEachState([&](const std::string& name, const Parameter&, const Tensor& tensor) {
    out.emplace_back(name, tensor);
  });
  return out;
}

std::map<std::string, Tensor> Optimizer::Checked(
    const NamedTensors& state, const std::function<Tensor(const Parameter&)>& value_of) const {
  const NamedTensors own = NamedState();
  std::map<std::string, std::pair<const Parameter*, Tensor>> expected;
  ForEachState([&](const std::string& name, const Parameter& p, const Tensor& tensor) {
    expected[name] = {&p, tensor};
  });
  std::map<std::string, Tensor> given;
  for (const auto& [name, loaded] : state) {
    const auto it = expected.find(name);
    if (it == expected.end() && settings_.ema == 0 && IsAverage(name)) continue;
    if (it == expected.end()) {
      throw InputError(StrCat("optimizer state: unknown tensor '", name, "': it ",
                              name.ends_with(".master")
                                  ? "is the f32 original of a 16-bit weight, and this optimizer "
                                    "keeps none: use master_weights = true, and 16-bit weights, as "
                                    "when it was saved"
                                  : "belongs to another model or optimizer"));
    }
    const auto& [p, want] = it->second;
    const bool is_part =
        !loaded.defined() || p->layout().is_whole() || !(loaded.shape() == p->logical_shape());
    const Tensor tensor = is_part ? loaded : p->PartOf(loaded);
    if (!given.emplace(name, tensor).second) {
      throw InputError(StrCat("optimizer state: the tensor '", name, "' is given twice"));
    }
    if (!tensor.defined() || !(tensor.shape() == want.shape()) || tensor.dtype() != want.dtype()) {
      throw InputError(
          StrCat("optimizer state: '", name, "' must be ", want.dtype(), want.shape(), ", got ",
                 tensor.Describe(), ": it ",
                 tensor.defined() && tensor.shape() == want.shape()
                     ? StrCat("was saved with state_dtype = ", tensor.dtype(), ": use that")
                     : "belongs to another model"));
    }
  }
  const bool begins_averages =
      std::ranges::none_of(state, [](const auto& named) { return IsAverage(named.first); });
  for (const auto& [name, tensor] : own) {
    if (!given.contains(name) && !(begins_averages && IsAverage(name))) {
      throw InputError(StrCat("optimizer state: the tensor '", name, "' is missing (", given.size(),
                              " of ", own.size(), " are there)",
                              name.ends_with(".master")
                                  ? ": it was saved without f32 originals of 16-bit weights: use "
                                    "master_weights = false, or f32 weights, as then"
                                  : ""));
    }
  }
  CheckOriginals(given, value_of);
  return given;
}

// An f32 original that is not that of the weights would overwrite them.
void Optimizer::CheckOriginals(const std::map<std::string, Tensor>& given,
                               const std::function<Tensor(const Parameter&)>& value_of) const {
  for (const auto& p : parameters_) {
    const auto master = given.find(p->name() + ".master");
    if (master == given.end() || p->device().is_meta()) continue;
    const Tensor value = value_of(*p).Detach().To(kCpu).Contiguous();
    if (value.numel() == 0) continue;  // this rank has no part of it
    const Tensor rounded = master->second.To(kCpu).To(value.dtype()).Contiguous();
    if (std::memcmp(value.raw_data(), rounded.raw_data(), static_cast<size_t>(value.bytes())) !=
        0) {
      throw InputError(
          StrCat("optimizer state: the f32 original of '", p->name(),
                 "' is not that of its weights, which it would overwrite: load the "
                 "weights and the optimizer's state of one checkpoint, weights first"));
    }
  }
}

void Optimizer::CheckState(const NamedTensors& state,
                           const std::function<Tensor(const Parameter&)>& value_of) const {
  Checked(state, value_of);
}

void Optimizer::LoadState(const NamedTensors& state) {
  const auto given = Checked(state, [](const Parameter& p) { return p.value(); });
  for (const auto& [name, tensor] : NamedState()) {
    if (const auto of = given.find(name); of != given.end()) tensor.CopyFrom(of->second);
  }
  for (size_t i = 0; i < trained_.size(); ++i) {
    const UpdateTensors& t = trained_[i].tensors;
    if (!t.average.defined() || given.contains(parameters_[i]->name() + kAverage)) continue;
    t.average.CopyFrom(t.master.defined() ? t.master : ValueOf(*parameters_[i]).Detach());
  }
  SeeVersions();
  any_next_ = true;
}

void Optimizer::UpdateAverages(std::span<const UpdateTensors> tensors,
                               const StepState& state) const {
  if (keeps_averages()) ops::EmaUpdate(tensors, {.decay = settings_.ema}, state);
}

void Optimizer::WithAverages(const std::function<void()>& f) {
  LS_CHECK(keeps_averages(), name(), " keeps no averages of the weights: make it with ema, such ",
           "as 0.999");
  if (host_updates_) Synchronize(CurrentStream(trained_[0].device));
  std::vector<Tensor> values, averages;
  for (size_t i = 0; i < trained_.size(); ++i) {
    values.push_back(ValueOf(*parameters_[i]).Detach().Clone());
    averages.push_back(trained_[i].tensors.average);
  }
  const auto set = [&](const std::vector<Tensor>& to) {
    for (size_t i = 0; i < to.size(); ++i) {
      ValueOf(*parameters_[i]).Detach().CopyFrom(to[i]);
    }
    SeeVersions();
  };
  set(averages);
  std::exception_ptr failure;
  try {
    f();
  } catch (...) {
    failure = std::current_exception();
  }
  set(values);
  if (failure) std::rethrow_exception(failure);
}

std::vector<Tensor> Optimizer::Originals() const {
  std::vector<Tensor> all;
  for (size_t i = 0; i < trained_.size(); ++i) {
    const Tensor& master = trained_[i].tensors.master;
    all.push_back(master.defined() ? master : parameters_[i]->value().Detach());
  }
  return all;
}

void Optimizer::SetOriginals(std::span<const Tensor> values) {
  const std::vector<Tensor> originals = Originals();
  LS_CHECK(values.size() == originals.size(), name(), ": ", values.size(), " originals for ",
           originals.size(), " parameters");
  for (size_t i = 0; i < originals.size(); ++i) {
    originals[i].CopyFrom(values[i]);
    if (trained_[i].tensors.master.defined()) {
      parameters_[i]->value().Detach().CopyFrom(originals[i]);
    }
  }
  SeeVersions();
}

}  // namespace lockstep::optim
