#include "kernels/op_case/op_case.h"
#include "kernels/residual/residual.h"

namespace lockstep {
namespace {

std::vector<RefTensor> Reference(RefSpan in) {
  return {FromElements(in[0].shape, [&](int64_t i) { return in[0].data[i] + in[1].data[i]; })};
}

OpSample Sample(const std::string& name, const InputSpec& input) {
  return {.name = name,
          .inputs = {input, input},
          .run = [](TensorSpan in) { return ops::Residual(in[0], in[1]); },
          .reference = Reference};
}

std::vector<OpSample> Samples() {
  // The gradient reaches x twice, and both handed-over gradients are the same tensor.
  OpSample stacked = Sample("stacked", {.shape = {3, 5}});
  stacked.run = [](TensorSpan in) {
    const Tensor y = ops::Residual(in[0], in[1]);
    return ops::Residual(y, ops::Residual(y, in[0]));
  };
  stacked.reference = [](RefSpan in) {
    RefTensor y(in[0].shape);
    for (size_t i = 0; i < y.data.size(); ++i) y.data[i] = 3 * in[0].data[i] + 2 * in[1].data[i];
    return y;
  };
  OpSample large = Sample("gpt2", {.shape = {8, 1024, 768}});
  large.benchmark = {.flops = 8.0 * 1024 * 768, .elements = 8.0 * 1024 * 768 * 3};
  return {Sample("empty", {.shape = {0, 3}}),
          Sample("one", {.shape = {1}}),
          Sample("scalar", {.shape = {}}),
          Sample("odd", {.shape = {7, 3, 11}}),
          Sample("strided", {.shape = {5, 9}, .non_contiguous = true}),
          stacked,
          large};
}

std::vector<ErrorSample> Errors() {
  return {{"shapes differ", [](Device d) { ops::Residual(Zeros(d, 2, 3), Zeros(d, 3)); },
           "residual: the branch must match x (f32[2, 3] on "},
          {"dtypes differ", [](Device d) { ops::Residual(Zeros(d, 2), Zeros(DType::kF64, d, 2)); },
           "residual: the branch must match x (f32[2] on "}};
}

const bool registered = RegisterOpCase({.name = "residual", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
