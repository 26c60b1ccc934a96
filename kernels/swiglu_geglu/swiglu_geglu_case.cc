#include <cmath>

#include "kernels/op_case/references.h"
#include "kernels/swiglu_geglu/swiglu_geglu.h"

namespace lockstep {
namespace {

double Silu(double x) { return x / (1 + std::exp(-x)); }

std::vector<RefTensor> Gated(double (*function)(double), RefSpan in) {
  Shape shape = in[0].shape;
  const int64_t f = shape[-1] /= 2;
  RefTensor y(shape);
  for (size_t i = 0; i < y.data.size(); ++i) {
    const size_t gate = i / f * 2 * f + i % f;
    y.data[i] = function(in[0].data[gate]) * in[0].data[gate + f];
  }
  return {y};
}

OpSample Sample(const std::string& name, const InputSpec& x) {
  return {.name = name,
          .inputs = {x},
          .run = [](TensorSpan in) { return ops::SwiGlu(in[0]); },
          .reference = [](RefSpan in) { return Gated(Silu, in); }};
}

OpSample Geglu(const std::string& name, const InputSpec& x) {
  return {.name = StrCat("geglu_tanh ", name),
          .inputs = {x},
          .run = [](TensorSpan in) { return ops::GegluTanh(in[0]); },
          .reference = [](RefSpan in) { return Gated(GeluTanh, in); }};
}

std::vector<OpSample> Samples() {
  OpSample large = Sample("llama", {.shape = {512, 2 * 5632}, .low = -4, .high = 4});
  large.benchmark = {.flops = 512.0 * 5632 * 15,
                     .elements = 512.0 * 5632 * 3,
                     .backward_elements = 512.0 * 5632 * 5};
  OpSample large_geglu = Geglu("gemma", {.shape = {512, 2 * 9216}, .low = -4, .high = 4});
  large_geglu.benchmark = {.flops = 512.0 * 9216 * 15,
                           .elements = 512.0 * 9216 * 3,
                           .backward_elements = 512.0 * 9216 * 5};
  return {Sample("empty", {.shape = {0, 6}}),
          Sample("one", {.shape = {2}, .low = 1, .high = 2}),
          Sample("odd", {.shape = {3, 5, 26}, .low = -4, .high = 4}),
          Sample("saturated", {.shape = {4, 40}, .low = -100, .high = 100}),
          Sample("one long row", {.shape = {2 * 33001}, .low = -3, .high = 3}),
          Sample("rows across chunks", {.shape = {37, 2 * 1001}, .low = -3, .high = 3}),
          Sample("transposed", {.shape = {5, 8}, .low = -4, .high = 4, .non_contiguous = true}),
          large,
          Geglu("odd", {.shape = {3, 5, 26}, .low = -4, .high = 4}),
          Geglu("saturated", {.shape = {4, 40}, .low = -100, .high = 100}),
          Geglu("rows across chunks", {.shape = {37, 2 * 1001}, .low = -3, .high = 3}),
          Geglu("transposed", {.shape = {5, 8}, .low = -4, .high = 4, .non_contiguous = true}),
          large_geglu};
}

std::vector<ErrorSample> Errors() {
  return {
      {"integers", [](Device d) { ops::SwiGlu(Zeros(DType::kI32, d, 2)); },
       "swiglu: the input must be a floating [..., 2F], gate and up side by side, got i32[2]"},
      {"odd size", [](Device d) { ops::SwiGlu(Zeros(d, 2, 3)); },
       "swiglu: the input must be a floating [..., 2F], gate and up side by side, got f32[2, 3]"},
      {"geglu of an odd size", [](Device d) { ops::GegluTanh(Zeros(d, 2, 3)); },
       "geglu_tanh: the input must be a floating [..., 2F], gate and up side by side, got "
       "f32[2, 3]"},
      {"scalar", [](Device d) { ops::SwiGlu(Zeros(d)); },
       "swiglu: the input must be a floating [..., 2F]"}};
}

const bool registered =
    RegisterOpCase({.name = "swiglu_geglu", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
