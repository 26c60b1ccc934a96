#include "nn/lora/add_lora.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>

#include "kernels/binary/binary.h"
#include "kernels/matmul/matmul.h"
#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"

namespace lockstep::nn {
namespace {

// The layers that may get an adapter, by their paths, in the order of the model's modules.
std::vector<std::pair<std::string, Module*>> Linears(Module& model) {
  std::vector<std::pair<std::string, Module*>> out;
  std::string adapted;  // the path of the adapter that came last; what is below comes next
  for (const auto& [path, module] : model.NamedModules()) {
    if (!adapted.empty() && (path == adapted || path.starts_with(adapted + "."))) continue;
    const bool adapter = dynamic_cast<LoraAdapter*>(module) != nullptr;
    adapted = adapter ? path : "";
    const bool linear = dynamic_cast<Linear*>(module) || dynamic_cast<BranchLinear*>(module) ||
                        dynamic_cast<GroupedLinear*>(module);
    if (linear && !path.empty()) out.emplace_back(path, module);
  }
  return out;
}

// "h.0.attn.c_attn, h.0.attn.c_proj, ..."
std::string List(const std::vector<std::pair<std::string, Module*>>& linears) {
  constexpr size_t kMost = 12;
  std::string out;
  for (size_t i = 0; i < std::min(kMost, linears.size()); ++i) {
    out += (i > 0 ? ", " : "") + linears[i].first;
  }
  if (linears.size() > kMost) out += StrCat(" and ", linears.size() - kMost, " more");
  return linears.empty() ? "none" : out;
}

template <class L>
std::vector<LoraSlice> SlicesOf(const L& linear, const LoraTarget& target,
                                const LoraOptions& options) {
  if (!target.slices.empty()) return target.slices;
  return {{.rows = linear.out_features(), .rank = options.rank, .scale = options.scale()}};
}

std::shared_ptr<Module> MakeAdapter(const Module& layer, const LoraTarget& target,
                                    const LoraOptions& options) {
  const auto make = [&]<class Adapted>(const auto& linear) -> std::shared_ptr<Module> {
    return std::make_shared<Adapted>(linear, SlicesOf(linear, target, options), options.dropout);
  };
  try {
    if (const auto* linear = dynamic_cast<const Linear*>(&layer)) {
      return make.operator()<LoraLinear>(*linear);
    }
    if (const auto* linear = dynamic_cast<const GroupedLinear*>(&layer)) {
      return make.operator()<LoraGroupedLinear>(*linear);
    }
    return make.operator()<LoraBranchLinear>(dynamic_cast<const BranchLinear&>(layer));
  } catch (const ArgumentError& error) {
    throw ArgumentError(StrCat(target.path, ": ", error.what()));
  }
}

// How many matrices there are; stacked ones have three dimensions.
int64_t NumMatrices(const LoraAdapter& adapter) {
  const Shape& shape = adapter.weight()->logical_shape();
  return shape.ndim() == 3 ? shape[0] : 1;
}

Tensor MatrixOf(const Parameter& p, int64_t i) {
  const Tensor all = p.value().Detach();
  return all.ndim() == 3 ? all.Slice(0, i, i + 1).Squeeze(0) : all;
}

// |x|^2 in f64.
double SquaredNorm(const Tensor& x) { return ops::Sum(ops::Mul(x, x).To(DType::kF64)).Item(); }

void CheckMergeable(const LoraAdapter& adapter) {
  LS_CHECK(adapter.without() != nullptr, "LoRA: the base of the adapter at '",
           adapter.adapter_path(), "' is not a plain linear layer, so nothing can be merged into ",
           "it: merge into the model's files instead");
  LS_CHECK(adapter.weight()->layout().is_whole(), "LoRA: the weight at '", adapter.adapter_path(),
           "' is sharded across ranks: merge in a single process");
}

// The share of `update` that is not in after - before.
double Lost(const Tensor& before, const Tensor& after, const Tensor& update) {
  const double norm = SquaredNorm(update);
  return norm > 0 ? std::sqrt(SquaredNorm(after - before - update) / norm) : 0;
}

}  // namespace

void AddLora(Module& model, const std::vector<LoraTarget>& targets, const LoraOptions& options,
             uint64_t seed) {
  LS_CHECK(options.rank > 0, "LoRA: the rank must be positive, got ", options.rank);
  const auto linears = Linears(model);
  std::vector<std::pair<const LoraTarget*, std::shared_ptr<Module>>> made;
  for (const LoraTarget& target : targets) {
    const auto at =
        std::ranges::find(linears, target.path, &std::pair<std::string, Module*>::first);
    LS_CHECK(at != linears.end(), "LoRA: there is no linear layer without an adapter at '",
             target.path, "'; there are: ", List(linears));
    made.emplace_back(&target, MakeAdapter(*at->second, target, options));
  }
  LS_CHECK(!made.empty(), "LoRA: no targets are given; there are: ", List(linears));
  std::vector<std::shared_ptr<Parameter>> base = model.Parameters();
  std::erase_if(base, [](const auto& p) { return !p->trainable(); });
  for (const auto& p : base) p->SetTrainable(false);
  dynamic_cast<LoraAdapter&>(*made[0].second).SetFrozen(base);
  for (auto& [target, module] : made) model.ReplaceChild(target->path, module);
  model.AssignNames();
  for (LoraAdapter* adapter : LoraAdapters(model)) {
    std::vector<std::shared_ptr<Parameter>> own = {adapter->a()};
    for (size_t i = 0; i < adapter->slices().size(); ++i) {
      if (adapter->b(i)) own.push_back(adapter->b(i));
    }
    const Parameter& weight = *adapter->weight();
    for (const auto& p : own) {
      p->SetTrainable(true);
      const bool fresh = p->device().is_meta() && !weight.device().is_meta();
      if (fresh) p->Materialize(weight.device(), weight.value().dtype(), seed);
    }
  }
}

void AddLora(Module& model, const std::vector<std::string>& patterns, const LoraOptions& options,
             uint64_t seed) {
  const auto linears = Linears(model);
  std::vector<LoraTarget> targets;
  std::vector<bool> used(patterns.size());
  for (const auto& [path, module] : linears) {
    bool matches = false;
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (fnmatch(patterns[i].c_str(), path.c_str(), 0) == 0) matches = used[i] = true;
    }
    if (matches) targets.push_back({.path = path});
  }
  for (size_t i = 0; i < patterns.size(); ++i) {
    LS_CHECK(used[i], "LoRA: '", patterns[i],
             "' matches no linear layer without an adapter; there are: ", List(linears));
  }
  AddLora(model, targets, options, seed);
}

void RemoveLora(Module& model) {
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> layers;
  std::vector<std::shared_ptr<Parameter>> frozen;
  for (const LoraAdapter* adapter : LoraAdapters(model)) {
    std::ranges::move(adapter->frozen(), std::back_inserter(frozen));
    layers.emplace_back(adapter->adapter_path(), adapter->without());
    LS_CHECK(layers.back().second != nullptr, "LoRA: the base of the adapter at '",
             layers.back().first, "' is no longer a plain linear layer, so it cannot be put back");
  }
  LS_CHECK(!layers.empty(), "LoRA: the model has no adapters to remove");
  for (auto& [path, layer] : layers) model.ReplaceChild(path, std::move(layer));
  for (const auto& p : frozen) p->SetTrainable(true);
}

Tensor MergedRows(const Tensor& rows, const Tensor& a, const Tensor& b, double scale, DType dtype,
                  double* lost) {
  const NoGrad no_grad;
  const DType wide = rows.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  const Tensor before = rows.To(wide).Contiguous();
  const Tensor update = ops::MatMul(b.To(wide), a.To(wide)) * scale;
  const Tensor merged = (before + update).To(dtype);
  *lost = Lost(before, merged.To(wide), update);
  return merged;
}

std::vector<LoraMergeLoss> MergeLora(Module& model, std::optional<DType> dtype) {
  const NoGrad no_grad;
  const std::vector<LoraAdapter*> adapters = LoraAdapters(model);
  for (const LoraAdapter* adapter : adapters) CheckMergeable(*adapter);
  std::vector<LoraMergeLoss> losses;
  for (const LoraAdapter* adapter : adapters) {
    const int64_t matrices = NumMatrices(*adapter);
    for (int64_t e = 0; e < matrices; ++e) {
      const Tensor weight = MatrixOf(*adapter->weight(), e), all_a = MatrixOf(*adapter->a(), e);
      int64_t row = 0;
      for (size_t i = 0; i < adapter->slices().size(); ++i) {
        const LoraSlice& slice = adapter->slices()[i];
        if (slice.rank > 0) {
          const int64_t first = adapter->first_rank(i);
          const Tensor a = all_a.Slice(0, first, first + slice.rank);
          const Tensor b = MatrixOf(*adapter->b(i), e);
          const Tensor rows = weight.Slice(0, row, row + slice.rows);
          double lost = 0;
          rows.CopyFrom(MergedRows(rows, a, b, slice.scale, dtype.value_or(rows.dtype()), &lost));
          const std::string expert = matrices > 1 ? StrCat("[", e, "]") : "";
          losses.push_back({adapter->adapter_path() + expert, slice.name, lost});
        }
        row += slice.rows;
      }
    }
  }
  RemoveLora(model);
  return losses;
}

}  // namespace lockstep::nn
