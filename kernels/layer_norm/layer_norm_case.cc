#include "kernels/layer_norm/layer_norm.h"
#include "kernels/op_case/references.h"

namespace lockstep {
namespace {

constexpr double kEps = 1e-5;

RefTensor Reference(RefSpan in) {
  return NormReference(true, in[0], in[1], in.size() > 2 ? &in[2] : nullptr, kEps);
}

OpSample Sample(const std::string& name, const InputSpec& x, bool bias = true) {
  const int64_t c = x.shape[-1];
  OpSample s;
  s.name = name;
  s.inputs = {x, {.shape = {c}, .low = 0.5, .high = 1.5}};
  if (bias) s.inputs.push_back({.shape = {c}});
  s.run = [](TensorSpan in) {
    return ops::LayerNorm(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), kEps);
  };
  s.reference = Reference;
  return s;
}

std::vector<OpSample> Samples() {
  OpSample strided = Sample("strided", {.shape = {6, 9}, .low = -2, .high = 2});
  strided.inputs[0].non_contiguous = true;
  OpSample mixed = Sample("weights of f32", {.shape = {4, 24}});
  for (size_t i : {1, 2}) mixed.inputs[i].dtype = DType::kF32;
  // Rows longer than what a block of threads keeps, and than its memory for their gradients'
  // sums.
  std::vector<OpSample> long_rows = {Sample("long rows", {.shape = {3, 4613}}),
                                     Sample("long rows of whole packs", {.shape = {3, 4624}}),
                                     Sample("very long rows", {.shape = {2, 12400}})};
  for (OpSample& s : long_rows) s.finite_differences = false;  // slow; the others have them
  OpSample large = Sample("gpt2", {.shape = {8, 1024, 768}});
  large.benchmark = {.flops = 8.0 * 1024 * 768 * 8, .elements = 8.0 * 1024 * 768 * 2};
  std::vector<OpSample> samples{Sample("empty", {.shape = {0, 5}}),
                                Sample("one element", {.shape = {1}}),
                                Sample("one row", {.shape = {24}, .low = -4, .high = 4}),
                                Sample("odd", {.shape = {3, 5, 37}, .low = -2, .high = 2}),
                                Sample("no bias", {.shape = {4, 16}}, false),
                                Sample("many row blocks", {.shape = {70, 6}}),
                                Sample("far from zero", {.shape = {3, 64}, .low = 99, .high = 101}),
                                strided,
                                mixed,
                                large};
  samples.insert(samples.end(), long_rows.begin(), long_rows.end());
  return samples;
}

std::vector<ErrorSample> Errors() {
  return {{"integers", [](Device d) { ops::LayerNorm(Zeros(DType::kI32, d, 2, 3), Zeros(d, 3)); },
           "layer_norm: x must be a floating [..., C] with C > 0, got i32[2, 3]"},
          {"no channels", [](Device d) { ops::LayerNorm(Zeros(d, 2, 0), Zeros(d, 0)); },
           "layer_norm: x must be a floating [..., C] with C > 0, got f32[2, 0]"},
          {"weight too short", [](Device d) { ops::LayerNorm(Zeros(d, 2, 4), Zeros(d, 3)); },
           "layer_norm: weight must be f32[4]"},
          {"bias of another dtype",
           [](Device d) { ops::LayerNorm(Zeros(d, 2, 4), Zeros(d, 4), Zeros(DType::kF64, d, 4)); },
           "layer_norm: bias must be f32[4]"},
          {"negative eps", [](Device d) { ops::LayerNorm(Zeros(d, 4), Zeros(d, 4), {}, -1); },
           "layer_norm: eps must not be negative, got -1"}};
}

const bool registered =
    RegisterOpCase({.name = "layer_norm", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
