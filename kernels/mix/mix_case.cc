#include "kernels/mix/mix.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

RefTensor Reference(RefSpan in) {
  return FromElements(in[0].shape, [&](int64_t i) {
    return in[1].data[0] * in[0].data[i] + in[3].data[0] * in[2].data[i];
  });
}

OpSample Sample(const std::string& name, const InputSpec& x) {
  return {.name = name,
          .inputs = {x, {.shape = {1}, .low = 0.5, .high = 1.5}, x, {.shape = {1}}},
          .run = [](TensorSpan in) { return ops::Mix(in[0], in[1], in[2], in[3]); },
          .reference = Reference};
}

std::vector<OpSample> Samples() {
  // As at the start of a model, where the stream is what is mixed into it.
  OpSample same = Sample("same twice", {.shape = {3, 5}});
  same.run = [](TensorSpan in) {
    return ops::Mix(in[0], in[1], ops::Mix(in[0], in[1], in[2], in[3]), in[3]);
  };
  same.reference = [](RefSpan in) {
    std::vector<RefTensor> outer(in.begin(), in.end());
    outer[2] = Reference(in);
    return Reference(outer);
  };
  OpSample mixed = Sample("factors of f32", {.shape = {4, 24}});
  mixed.inputs[1].dtype = mixed.inputs[3].dtype = DType::kF32;
  OpSample large = Sample("gpt2", {.shape = {8, 1024, 768}});
  constexpr double kSize = 8.0 * 1024 * 768;
  large.benchmark = {.flops = 3 * kSize,
                     .elements = 3 * kSize,
                     .backward_flops = 6 * kSize,
                     .backward_elements = 5 * kSize};
  return {Sample("empty", {.shape = {0, 3}}),
          Sample("one", {.shape = {1}}),
          Sample("odd", {.shape = {7, 3, 11}}),
          Sample("strided", {.shape = {5, 9}, .non_contiguous = true}),
          Sample("several blocks", {.shape = {3, 8209}}),
          same,
          mixed,
          large};
}

std::vector<ErrorSample> Errors() {
  return {{"shapes differ",
           [](Device d) { ops::Mix(Zeros(d, 2, 3), Zeros(d, 1), Zeros(d, 3), Zeros(d, 1)); },
           "mix: z must match x (f32[2, 3] on "},
          {"two factors",
           [](Device d) { ops::Mix(Zeros(d, 2), Zeros(d, 2), Zeros(d, 2), Zeros(d, 1)); },
           "mix: a factor must be f32[1]"},
          {"integers",
           [](Device d) {
             const Tensor x = Zeros(DType::kI32, d, 2);
             ops::Mix(x, Zeros(d, 1), x, Zeros(d, 1));
           },
           "mix: x must be a floating tensor, got i32[2]"}};
}

const bool registered = RegisterOpCase({.name = "mix", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
