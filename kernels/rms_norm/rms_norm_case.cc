#include "kernels/op_case/references.h"
#include "kernels/rms_norm/rms_norm.h"

namespace lockstep {
namespace {

constexpr double kEps = 1e-5;

RefTensor Reference(RefSpan in) { return NormReference(false, in[0], in[1], nullptr, kEps); }

OpSample Sample(const std::string& name, const InputSpec& x) {
  return {.name = name,
          .inputs = {x, {.shape = {x.shape[-1]}, .low = 0.5, .high = 1.5}},
          .run = [](TensorSpan in) { return ops::RmsNorm(in[0], in[1], kEps); },
          .reference = Reference};
}

OpSample WithoutWeight(const std::string& name, const InputSpec& x) {
  OpSample s = Sample(StrCat("without weight, ", name), x);
  s.inputs.pop_back();
  s.run = [](TensorSpan in) { return ops::RmsNorm(in[0], {}, kEps); };
  s.reference = [](RefSpan in) {
    RefTensor ones({in[0].shape[-1]});
    ones.data.assign(ones.data.size(), 1);
    return NormReference(false, in[0], ones, nullptr, kEps);
  };
  return s;
}

std::vector<OpSample> Samples() {
  OpSample strided = Sample("strided", {.shape = {6, 9}, .low = -2, .high = 2});
  strided.inputs[0].non_contiguous = true;
  OpSample mixed = Sample("weight of f32", {.shape = {4, 24}});
  mixed.inputs[1].dtype = DType::kF32;
  OpSample large = Sample("llama", {.shape = {4, 512, 2048}});
  large.benchmark = {.flops = 4.0 * 512 * 2048 * 4,
                     .elements = 4.0 * 512 * 2048 * 2,
                     .backward_elements = 4.0 * 512 * 2048 * 3};
  return {Sample("empty", {.shape = {0, 5}}),
          // About as large as sqrt(eps): where x is much larger, the gradient is what cancellation
          // leaves.
          Sample("one element", {.shape = {1}, .low = 4e-3, .high = 8e-3}),
          Sample("one row", {.shape = {24}, .low = -4, .high = 4}),
          Sample("odd", {.shape = {3, 5, 37}, .low = -2, .high = 2}),
          Sample("many row blocks", {.shape = {1100, 17}}),
          Sample("far from zero", {.shape = {3, 64}, .low = 99, .high = 101}),
          Sample("whole packs", {.shape = {5, 264}}),
          Sample("tiny", {.shape = {3, 64}, .low = -1e-3, .high = 1e-3}),
          WithoutWeight("empty", {.shape = {0, 5}}),
          WithoutWeight("odd", {.shape = {3, 5, 37}, .low = -2, .high = 2}),
          WithoutWeight("whole packs", {.shape = {5, 264}}),
          WithoutWeight("many row blocks", {.shape = {1100, 17}}),
          // CUDA's backward has several blocks for such a row.
          WithoutWeight("long rows", {.shape = {3, 4120}}), strided, mixed, large};
}

std::vector<ErrorSample> Errors() {
  return {{"integers", [](Device d) { ops::RmsNorm(Zeros(DType::kI32, d, 2, 3), Zeros(d, 3)); },
           "rms_norm: x must be a floating [..., C] with C > 0, got i32[2, 3]"},
          {"no channels", [](Device d) { ops::RmsNorm(Zeros(d, 2, 0), Zeros(d, 0)); },
           "rms_norm: x must be a floating [..., C] with C > 0, got f32[2, 0]"},
          {"weight too short", [](Device d) { ops::RmsNorm(Zeros(d, 2, 4), Zeros(d, 3)); },
           "rms_norm: weight must be f32[4]"},
          {"weight of another dtype",
           [](Device d) { ops::RmsNorm(Zeros(d, 2, 4), Zeros(DType::kF64, d, 4)); },
           "rms_norm: weight must be f32[4]"},
          {"negative eps", [](Device d) { ops::RmsNorm(Zeros(d, 4), Zeros(d, 4), -1); },
           "rms_norm: eps must not be negative, got -1"}};
}

const bool registered = RegisterOpCase({.name = "rms_norm", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
