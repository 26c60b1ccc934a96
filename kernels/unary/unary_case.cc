#include <algorithm>
#include <cmath>

#include "kernels/op_case/op_case.h"
#include "kernels/unary/unary.h"

namespace lockstep {
namespace {

struct Function {
  const char* name;
  Tensor (*run)(const Tensor&);
  double (*reference)(double);
  double low = -3, high = 3;  // of x
  bool kinks = false;
  bool saturates = false;  // has values at any x
  bool benchmark = false;
};

double ReferenceSign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

const Function kFunctions[] = {
    {.name = "relu",
     .run = ops::Relu,
     .reference = [](double x) { return x > 0 ? x : 0; },
     .kinks = true,
     .saturates = true,
     .benchmark = true},
    {.name = "relu2",
     .run = ops::Relu2,
     .reference = [](double x) { return x > 0 ? x * x : 0; },
     .saturates = true,
     .benchmark = true},
    {.name = "tanh",
     .run = ops::Tanh,
     .reference = [](double x) { return std::tanh(x); },
     .saturates = true,
     .benchmark = true},
    {.name = "sigmoid",
     .run = ops::Sigmoid,
     .reference = [](double x) { return 1 / (1 + std::exp(-x)); },
     .saturates = true,
     .benchmark = true},
    {.name = "silu",
     .run = ops::Silu,
     .reference = [](double x) { return x / (1 + std::exp(-x)); },
     .saturates = true,
     .benchmark = true},
    {.name = "exp",
     .run = ops::Exp,
     .reference = [](double x) { return std::exp(x); },
     .benchmark = true},
    {.name = "expm1", .run = ops::Expm1, .reference = [](double x) { return std::expm1(x); }},
    {.name = "log", .run = ops::Log, .reference = [](double x) { return std::log(x); }, .low = 0.2},
    {.name = "log1p",
     .run = ops::Log1p,
     .reference = [](double x) { return std::log1p(x); },
     .low = -0.8},
    {.name = "sqrt",
     .run = ops::Sqrt,
     .reference = [](double x) { return std::sqrt(x); },
     .low = 0.2},
    {.name = "rsqrt",
     .run = ops::Rsqrt,
     .reference = [](double x) { return 1 / std::sqrt(x); },
     .low = 0.2},
    {.name = "reciprocal",
     .run = ops::Reciprocal,
     .reference = [](double x) { return 1 / x; },
     .low = -3,
     .high = -0.5},
    {.name = "square", .run = ops::Square, .reference = [](double x) { return x * x; }},
    {.name = "abs",
     .run = ops::Abs,
     .reference = [](double x) { return std::abs(x); },
     .kinks = true},
    {.name = "sign", .run = ops::Sign, .reference = ReferenceSign, .kinks = true},
    {.name = "sin",
     .run = ops::Sin,
     .reference = [](double x) { return std::sin(x); },
     .low = -20,
     .high = 20},
    {.name = "cos",
     .run = ops::Cos,
     .reference = [](double x) { return std::cos(x); },
     .low = -20,
     .high = 20},
    {.name = "erf",
     .run = ops::Erf,
     .reference = [](double x) { return std::erf(x); },
     .saturates = true},
    {.name = "softplus",
     .run = ops::Softplus,
     .reference = [](double x) { return x > 30 ? x : std::log1p(std::exp(x)); },
     .saturates = true},
    {.name = "floor",
     .run = ops::Floor,
     .reference = [](double x) { return std::floor(x); },
     .kinks = true},
    {.name = "ceil",
     .run = ops::Ceil,
     .reference = [](double x) { return std::ceil(x); },
     .kinks = true},
    {.name = "round",
     .run = ops::Round,
     .reference = [](double x) { return x - std::remainder(x, 1.0); },
     .kinks = true},
    {.name = "clamp",
     .run = [](const Tensor& x) { return ops::Clamp(x, -0.7, 1.1); },
     .reference = [](double x) { return std::min(std::max(x, -0.7), 1.1); },
     .kinks = true,
     .saturates = true,
     .benchmark = true},
    {.name = "pow",
     .run = [](const Tensor& x) { return ops::Pow(x, 1.7); },
     .reference = [](double x) { return std::pow(x, 1.7); },
     .low = 0.2,
     .benchmark = true},
    {.name = "second_power",
     .run = [](const Tensor& x) { return ops::Pow(x, 2); },
     .reference = [](double x) { return x * x; }},
    {.name = "half_power",
     .run = [](const Tensor& x) { return ops::Pow(x, 0.5); },
     .reference = [](double x) { return std::sqrt(x); },
     .low = 0.2},
    {.name = "inverse_power",
     .run = [](const Tensor& x) { return ops::Pow(x, -1); },
     .reference = [](double x) { return 1 / x; },
     .low = 0.5},
    {.name = "cube",
     .run = [](const Tensor& x) { return ops::Pow(x, 3); },
     .reference = [](double x) { return x * x * x; }},
    {.name = "to_the_zero",
     .run = [](const Tensor& x) { return ops::Pow(x, 0); },
     .reference = [](double) { return 1.0; }},
    {.name = "leaky_relu",
     .run = [](const Tensor& x) { return ops::LeakyRelu(x, 0.2); },
     .reference = [](double x) { return x > 0 ? x : 0.2 * x; },
     .kinks = true,
     .saturates = true},
    {.name = "elu",
     .run = [](const Tensor& x) { return ops::Elu(x, 1.5); },
     .reference = [](double x) { return x > 0 ? x : 1.5 * std::expm1(x); },
     .kinks = true,
     .saturates = true},
    {.name = "softcap",
     .run = [](const Tensor& x) { return ops::Softcap(x, 1.5); },
     .reference = [](double x) { return 1.5 * std::tanh(x / 1.5); },
     .saturates = true}};

OpSample Sample(const Function& f, const std::string& name, const Shape& shape) {
  return {.name = StrCat(f.name, "_", name),
          .inputs = {{.shape = shape, .low = f.low, .high = f.high}},
          .run = [f](TensorSpan in) { return f.run(in[0]); },
          .reference = OfEach(f.reference),
          .kinks = f.kinks};
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> samples;
  for (const Function& f : kFunctions) {
    samples.push_back(Sample(f, "empty", {0, 3}));
    samples.push_back(Sample(f, "odd", {7, 13}));
    samples.push_back(Sample(f, "transposed", {5, 9}));
    samples.back().inputs[0].non_contiguous = true;
    if (f.saturates) {
      samples.push_back(Sample(f, "saturated", {40}));
      samples.back().inputs[0].low = -100;
      samples.back().inputs[0].high = 100;
    }
    if (!f.benchmark) continue;
    samples.push_back(Sample(f, "one", {1}));
    samples.push_back(Sample(f, "chunks", {33001}));
    OpSample large = Sample(f, "large", {4 << 20});
    large.benchmark = {
        .flops = 4 << 20, .elements = 2.0 * (4 << 20), .backward_elements = 3.0 * (4 << 20)};
    samples.push_back(large);
  }
  return samples;
}

std::vector<ErrorSample> Errors() {
  return {{"integers", [](Device d) { ops::Tanh(Zeros(DType::kI32, d, 2)); },
           "tanh: x must be a floating tensor, got i32[2]"},
          {"no cap", [](Device d) { ops::Softcap(Zeros(d, 2), 0); },
           "softcap: the cap must be positive, got 0"},
          {"undefined", [](Device) { ops::Relu(Tensor()); },
           "relu: x must be a floating tensor, got undefined tensor"},
          {"low_above_high", [](Device d) { ops::Clamp(Zeros(d, 2), 2, 1.5); },
           "clamp: low = 2 must not be above high = 1.5"},
          {"nan_limit", [](Device d) { ops::Clamp(Zeros(d, 2), 0, std::nan("")); },
           "clamp: low = 0 must not be above high = nan"}};
}

const bool registered = RegisterOpCase({.name = "unary", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
