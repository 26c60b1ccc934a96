#include <cmath>

#include "kernels/gelu/gelu.h"
#include "kernels/op_case.h"

namespace lockstep {
namespace {

std::vector<RefTensor> Reference(std::span<const RefTensor> in) {
  RefTensor y(in[0].shape);
  for (size_t i = 0; i < y.data.size(); ++i) {
    const double x = in[0].data[i];
    y.data[i] = 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * std::pow(x, 3))));
  }
  return {y};
}

OpSample Sample(const std::string& name, const InputSpec& x) {
  return {.name = name,
          .inputs = {x},
          .run = [](std::span<const Tensor> in) { return std::vector{ops::Gelu(in[0])}; },
          .reference = Reference};
}

OpCase Make() {
  OpCase c;
  c.name = "gelu";
  c.dtypes = {DType::kF64, DType::kF32, DType::kBF16};
  c.samples = [] {
    std::vector<OpSample> s = {
        Sample("empty", {.shape = {0, 3}}), Sample("one", {.shape = {1}}),
        Sample("odd", {.shape = {7, 13}, .low = -4, .high = 4}),
        Sample("saturated", {.shape = {40}, .low = -30, .high = 30}),
        Sample("transposed", {.shape = {5, 9}, .low = -4, .high = 4, .non_contiguous = true})};
    OpSample large = Sample("mlp", {.shape = {1024, 3072}, .low = -4, .high = 4});
    large.flops = 1024.0 * 3072 * 20;
    large.elements_moved = 1024.0 * 3072 * 2;
    large.backward_elements_moved = 1024.0 * 3072 * 3;
    large.benchmark_only = true;
    s.push_back(large);
    return s;
  };
  c.errors = [] {
    return std::vector<ErrorSample>{
        {"integers", [](Device d) { ops::Gelu(Tensor::Zeros({2}, DType::kI32, d)); },
         "gelu: x must be a floating tensor, got i32[2]"}};
  };
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
