#include <cmath>

#include "kernels/activation/activation.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

struct Function {
  const char* name;
  Tensor (*run)(const Tensor&);
  double (*reference)(double);
};

constexpr Function kFunctions[] = {
    {"relu", ops::Relu, [](double x) { return x > 0 ? x : 0; }},
    {"tanh", ops::Tanh, [](double x) { return std::tanh(x); }},
    {"sigmoid", ops::Sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }},
    {"silu", ops::Silu, [](double x) { return x / (1 + std::exp(-x)); }}};

OpSample Sample(const Function& f, const std::string& name, const InputSpec& x) {
  return {.name = StrCat(f.name, "_", name),
          .inputs = {x},
          .run = [f](std::span<const Tensor> in) { return std::vector{f.run(in[0])}; },
          .reference =
              [f](std::span<const RefTensor> in) {
                RefTensor y = in[0];
                for (double& v : y.data) v = f.reference(v);
                return std::vector{y};
              },
          .kinks = f.run == ops::Relu};
}

OpCase Make() {
  OpCase c;
  c.name = "activation";
  c.dtypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  c.samples = [] {
    std::vector<OpSample> samples;
    for (const Function& f : kFunctions) {
      samples.push_back(Sample(f, "empty", {.shape = {0, 3}}));
      samples.push_back(Sample(f, "one", {.shape = {1}}));
      samples.push_back(Sample(f, "odd", {.shape = {7, 13}, .low = -3, .high = 3}));
      samples.push_back(Sample(f, "saturated", {.shape = {40}, .low = -100, .high = 100}));
      samples.push_back(Sample(f, "chunks", {.shape = {33001}, .low = -3, .high = 3}));
      samples.push_back(Sample(f, "transposed", {.shape = {5, 9}, .non_contiguous = true}));
      OpSample large = Sample(f, "large", {.shape = {4 << 20}, .low = -4, .high = 4});
      large.flops = 4 << 20;
      large.elements_moved = 2.0 * (4 << 20);
      large.backward_flops = 2 * large.flops;
      large.backward_elements_moved = 3.0 * (4 << 20);
      large.benchmark_only = true;
      samples.push_back(large);
    }
    return samples;
  };
  c.errors = [] {
    return std::vector<ErrorSample>{
        {"integers", [](Device d) { ops::Tanh(Tensor::Zeros({2}, DType::kI32, d)); },
         "tanh: x must be a floating tensor, got i32[2]"},
        {"undefined", [](Device) { ops::Relu(Tensor()); },
         "relu: x must be a floating tensor, got undefined tensor"}};
  };
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
