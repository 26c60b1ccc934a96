#include "kernels/op_case/op_case.h"
#include "kernels/scale/scale.h"

namespace lockstep {
namespace {

OpSample Sample(const std::string& name, const InputSpec& x, double alpha) {
  return {.name = name,
          .inputs = {x},
          .run = [alpha](TensorSpan in) { return ops::Scale(in[0], alpha); },
          .reference = OfEach([alpha](double v) { return v * alpha; })};
}

OpSample InPlace() {
  OpSample s = Sample("in_place", {.shape = {5, 7}, .differentiable = false}, 0.3);
  s.run = [](TensorSpan in) {
    const Tensor x = in[0].Clone();
    ops::ScaleInPlace(x, 0.3);
    return x;
  };
  return s;
}

OpSample Operators() {
  OpSample s = Sample("operators", {.shape = {5, 7}}, -0.75);
  s.run = [](TensorSpan in) { return -(3.0 * (in[0] * 0.5) / 2.0); };
  return s;
}

OpSample Quotient() {
  OpSample s = Sample("quotient", {.shape = {7, 13}}, 1.0 / 3);
  s.run = [](TensorSpan in) { return in[0] / 3.0; };
  s.reference = OfEach([](double v) { return v / 3.0; });
  return s;
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> s = {Sample("empty", {.shape = {4, 0}}, 2),
                             Sample("one", {.shape = {}}, -3),
                             Sample("odd", {.shape = {7, 13}}, 1.0 / 3),
                             Sample("zero", {.shape = {9}}, 0),
                             Sample("chunks", {.shape = {40001}}, 1.7),
                             Sample("transposed", {.shape = {5, 9}, .non_contiguous = true}, 0.1),
                             InPlace(),
                             Operators(),
                             Quotient()};
  OpSample large = Sample("large", {.shape = {8 << 20}}, 0.5);
  large.benchmark = {.flops = 8 << 20,
                     .elements = 2.0 * (8 << 20),
                     .backward_flops = 8 << 20,
                     .backward_elements = 2.0 * (8 << 20)};
  s.push_back(large);
  return s;
}

std::vector<ErrorSample> Errors() {
  return {
      {"bools", [](Device d) { ops::Scale(Zeros(DType::kBool, d, 2), 2); },
       "scale: x must be a floating tensor, got bool[2] on cpu; cast it with To(DType::kF32)"},
      {"quotient_of_integers", [](Device d) { Zeros(DType::kI32, d, 2) / 2; },
       "scale: x must be a floating tensor, got i32[2]"},
      {"fraction_of_integers", [](Device d) { Zeros(DType::kI32, d, 2) * 0.5; },
       "scale: i32[2] on cpu cannot have the value 0.5"},
      {"in_place_gradient", [](Device d) { ops::ScaleInPlace(Zeros(d, 2).SetRequiresGrad(), 2); },
       "ScaleInPlace of a tensor that requires a gradient"}};
}

const bool registered = RegisterOpCase({.name = "scale", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
