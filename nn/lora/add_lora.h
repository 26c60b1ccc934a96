// Adapters in a model of any kind: added, taken out, merged into its weights.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/lora/lora.h"

namespace lockstep::nn {

// What gets an adapter: the nn::Linear, nn::BranchLinear or nn::GroupedLinear at this path, and its
// slices. Without slices, one adapter covers all rows, with the options' rank and scale.
struct LoraTarget {
  std::string path;
  std::vector<LoraSlice> slices = {};
};

// Puts a LoraLinear, LoraBranchLinear or LoraGroupedLinear into the place of each target and
// freezes everything else (Parameter::SetTrainable(false)): gradients, optimizer state and
// reductions are those of the adapters.
//   nn::AddLora(model, {"h.*.attn.c_attn", "h.*.mlp.c_fc"}, {.rank = 16, .alpha = 32});
//   model.Materialize(device, seed);      // or nn::LoadState of the base, and of the adapters
//   optim::AdamW optimizer(model.Parameters(), ...);
// Call it before the model is parallelised or wrapped, and before an optimizer or anything else
// holds a parameter. If the model has memory, the adapters have it, too, in the base's dtype, with
// the values that Materialize(seed) gives. Throws ArgumentError for a path without such a layer
// (the error names the layers), for one that already has an adapter, and as LoraLinear does.
void AddLora(Module& model, const std::vector<LoraTarget>& targets, const LoraOptions& options,
             uint64_t seed = 0);
// The same for all layers whose paths match one of the patterns, in which * stands for any
// characters; each pattern must match at least one.
void AddLora(Module& model, const std::vector<std::string>& patterns, const LoraOptions& options,
             uint64_t seed = 0);

// Puts the linear layers back, without what the adapters add, and makes trainable again what
// AddLora froze.
// Throws ArgumentError if there is no adapter, or if a base has been replaced.
void RemoveLora(Module& model);

// W + scale B A of the rows W [rows, in] of a slice, with A [rank, in] and B [rows, rank] of any
// dtypes, computed in f32 (f64 for f64) and rounded once, to `dtype`. *lost is what
// LoraMergeLoss::lost is.
Tensor MergedRows(const Tensor& rows, const Tensor& a, const Tensor& b, double scale, DType dtype,
                  double* lost);

// How much of an adapter's effect on a matrix was lost because the sum was rounded to the weight's
// dtype: |(W' - W) - dW| / |dW| of Frobenius norms; 0 for dW = 0.
struct LoraMergeLoss {
  std::string path{};   // "h.0.attn.c_attn", of the matrix; "h.0.mlp.experts.c_fc[3]" of expert 3
  std::string slice{};  // "q_proj", or ""
  double lost = 0;
};

// W' = W + scale B A, computed in f32 (f64 for f64) and rounded once; then RemoveLora. With weights
// of 16 bits much of a small update can be lost: the result says so, slice by slice. With `dtype`,
// the one in which the model is going to be written, the sums are rounded to that instead. Throws
// ArgumentError, before anything is changed, as RemoveLora does, and if a weight is sharded across
// ranks.
std::vector<LoraMergeLoss> MergeLora(Module& model, std::optional<DType> dtype = {});

}  // namespace lockstep::nn
