#include "dist/data_parallel/training_file.h"

#include <charconv>
#include <exception>
#include <map>

#include "core/io/safetensors.h"
#include "core/io/safetensors_writer.h"
#include "dist/groups/agreement.h"
#include "dist/user_call.h"
#include "nn/state.h"

namespace lockstep::dist {
namespace {

constexpr char kModel[] = "model.", kOptimizer[] = "optimizer.";

// All tensors that are, or may be, sharded: every rank helps to produce each whole, in the same
// order. Of the others, those that this rank `writes`.
std::vector<SafetensorsItem> Items(const Module& model, const optim::Optimizer& optimizer,
                                   bool writes) {
  std::vector<SafetensorsItem> items;
  const auto add = [&](const std::string& name, const Parameter& p, const Tensor& part) {
    if (!p.layout().is_whole() || p.exchange()) {
      items.push_back(SafetensorsItem::Of(name, part.dtype(), p.logical_shape(),
                                          [&p, part] { return p.WholeOf(part); }));
    } else if (writes) {
      items.push_back(SafetensorsItem::Of(name, part));
    }
  };
  for (const auto& [name, p] : model.NamedParameters()) {
    add(kModel + name, *p, p->value().Detach());
  }
  optimizer.ForEachState([&](const std::string& name, const Parameter& p, const Tensor& part) {
    add(kOptimizer + name, p, part);
  });
  for (const auto& [name, buffer] : model.NamedBuffers()) {
    if (writes) items.push_back(SafetensorsItem::Of(kModel + name, buffer));
  }
  return items;
}

// So that it is read as the same number.
template <class T>
std::string Text(T number) {
  char text[32];
  return {text, std::to_chars(text, std::end(text), number).ptr};
}

std::map<std::string, std::string> Metadata(const StepState& state) {
  const StepValues values = state.Read();
  std::map<std::string, std::string> metadata = {{"steps", Text(values.step + 1)}};
  if (state.loss_scaling()) {
    metadata["loss_scale"] = Text(values.loss_scale.scale);
    metadata["good_steps"] = Text(values.loss_scale.good_steps);
    metadata["skipped"] = Text(values.loss_scale.skipped);
  }
  return metadata;
}

template <class T>
T Number(const SafetensorsFile& file, const std::string& key) {
  const auto it = file.metadata().find(key);
  const std::string text = it == file.metadata().end() ? "" : it->second;
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw InputError(StrCat(file.source(), ": the metadata have no number \"", key,
                            "\": load a file that SaveTraining wrote"));
  }
  return value;
}

// The tensors whose names begin with `kind`, without it, and of each what this rank holds.
NamedTensors Read(const SafetensorsFile& file, const std::string& kind,
                  const std::map<std::string, const Parameter*>& parameters) {
  NamedTensors tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    if (!entry.name.starts_with(kind)) continue;
    const std::string name = entry.name.substr(kind.size());
    Tensor tensor = entry.ToTensor();
    const auto it = parameters.find(name);
    if (it != parameters.end() && tensor.shape() == it->second->logical_shape()) {
      tensor = it->second->PartOf(tensor);
    }
    tensors.emplace_back(name, tensor);
  }
  return tensors;
}

}  // namespace

void SaveTraining(const std::string& path, DataRanks& ranks, const Module& model,
                  const optim::Optimizer& optimizer, const StepState& state) {
  SaveTraining(path, ranks.control(), model, optimizer, state);
}

void SaveTraining(const std::string& path, ProcessGroup* all, const Module& model,
                  const optim::Optimizer& optimizer, const StepState& state) {
  LS_CHECK(state.updater() == nullptr || state.phase() == StepPhase::kUpdated,
           "SaveTraining: the state's step has not been updated: save after optimizer.Step(state)");
  const UserCall call("SaveTraining");
  const bool is_main = all == nullptr || all->rank() == 0;
  std::vector<SafetensorsItem> items = Items(model, optimizer, is_main);
  std::vector<size_t> order;
  SafetensorsHeader(items, {}, &order);
  size_t produced = 0;  // of `order`
  std::exception_ptr failure;
  if (is_main) {
    std::vector<SafetensorsItem> counted = items;
    for (SafetensorsItem& item : counted) {
      item.produce = [&produced, produce = item.produce] {
        ++produced;
        return produce();
      };
    }
    try {
      nn::SaveTensors(path, counted, Metadata(state));
    } catch (const IoError&) {
      failure = std::current_exception();
    }
  }
  // The other ranks, and rank 0 after a failure of which they do not know yet.
  if (!is_main || failure) {
    for (size_t i = produced; i < order.size(); ++i) items[order[i]].produce();
  }
  bool failed = failure != nullptr;
  if (all != nullptr) {
    const int64_t mine = failed ? 1 : 0;
    for (const auto& row : GatherValues(*all, std::span(&mine, 1))) failed |= row[0] != 0;
    if (failed) MeetBeforeThrowing(*all);
  }
  if (failure) std::rethrow_exception(failure);
  if (failed) throw IoError(StrCat("rank 0 could not write ", path));
}

int64_t LoadTraining(const std::string& path, Module& model, optim::Optimizer& optimizer,
                     StepState& state) {
  const SafetensorsFile file = SafetensorsFile::Open(path);
  const auto steps = Number<int64_t>(file, "steps");
  LossScale scale;
  if (state.loss_scaling()) {
    scale = {.scale = Number<float>(file, "loss_scale"),
             .good_steps = Number<int32_t>(file, "good_steps"),
             .skipped = Number<int64_t>(file, "skipped")};
  }
  std::map<std::string, const Parameter*> weights, states;
  for (const auto& [name, p] : model.NamedParameters()) weights[name] = p.get();
  optimizer.ForEachState(
      [&](const std::string& name, const Parameter& p, const Tensor&) { states[name] = &p; });
  try {
    const NamedTensors model_state = Read(file, kModel, weights);
    const NamedTensors optimizer_state = Read(file, kOptimizer, states);
    std::map<const Parameter*, Tensor> values;
    for (const auto& [name, tensor] : model_state) {
      if (const auto it = weights.find(name); it != weights.end()) values[it->second] = tensor;
    }
    // Nothing is written before all is known to fit.
    nn::CheckState(model, model_state);
    optimizer.CheckState(optimizer_state, [&](const Parameter& p) {
      const auto it = values.find(&p);
      return it != values.end() ? it->second : p.value();
    });
    nn::LoadState(model, model_state);
    optimizer.LoadState(optimizer_state);
  } catch (const InputError& e) {
    throw InputError(StrCat(path, ": ", e.what()));
  }
  if (state.loss_scaling()) state.EnableLossScaling(*state.loss_scaling(), scale);
  return steps;
}

}  // namespace lockstep::dist
