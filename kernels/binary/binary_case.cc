#include <algorithm>
#include <cmath>

#include "kernels/binary/binary.h"
#include "kernels/op_case/op_case.h"
#include "kernels/scale/scale.h"

namespace lockstep {
namespace {

struct Function {
  const char* name;
  Tensor (*run)(const Tensor&, const Tensor&);
  double (*reference)(double, double);
  bool sum = false;  // hands dy on
  double low = -1;   // of a
  bool kinks = false;
};

const Function kFunctions[] = {
    {"add", ops::Add, [](double a, double b) { return a + b; }, true},
    {"sub", ops::Sub, [](double a, double b) { return a - b; }, true},
    {"mul", ops::Mul, [](double a, double b) { return a * b; }},
    {"div", ops::Div, [](double a, double b) { return a / b; }},
    {"maximum", ops::Maximum, [](double a, double b) { return std::max(a, b); }, false, 0.2, true},
    {"minimum", ops::Minimum, [](double a, double b) { return std::min(a, b); }, false, 0.2, true},
    {"power", ops::Pow, [](double a, double b) { return std::pow(a, b); }, false, 0.2}};

// Divisors lie well away from zero.
OpSample Sample(const Function& f, const std::string& name, const Shape& a, const Shape& b,
                const Shape& y, bool non_contiguous = false) {
  return {.name = StrCat(f.name, "_", name),
          .inputs = {{.shape = a, .low = f.low, .non_contiguous = non_contiguous},
                     {.shape = b, .low = 0.5, .high = 2, .non_contiguous = non_contiguous}},
          .run = [f](TensorSpan in) { return f.run(in[0], in[1]); },
          .reference =
              [f, y](RefSpan in) {
                return FromElements(y, [&](int64_t i) {
                  return f.reference(BroadcastAt(in[0], y, i), BroadcastAt(in[1], y, i));
                });
              },
          .kinks = f.kinks};
}

OpSample Benchmark(const Function& f, const std::string& name, const Shape& b) {
  OpSample s = Sample(f, name, {4096, 768}, b, {4096, 768});
  OpWork work = {.flops = 4096 * 768,
                 .elements = 2.0 * 4096 * 768 + static_cast<double>(b.numel())};
  if (f.sum) {  // hands dy on; the others read both operands too
    work.backward_flops = work.flops;
    work.backward_elements = work.elements;
  }
  s.benchmark = work;
  return s;
}

// x x / x = x, with operators: every operand takes part twice.
OpSample Shared() {
  return {.name = "shared_operand",
          .inputs = {{.shape = {5, 7}, .low = 0.5, .high = 2}},
          .run = [](TensorSpan in) { return in[0] * in[0] / in[0]; },
          .reference = [](RefSpan in) { return in[0]; }};
}

// (a + b) - a = b.
OpSample Operators() {
  return {.name = "operators",
          .inputs = {{.shape = {5, 7}}, {.shape = {7}}},
          .run = [](TensorSpan in) { return (in[0] + in[1]) - in[0]; },
          .reference =
              [](RefSpan in) {
                RefTensor y = in[0];
                for (size_t i = 0; i < y.data.size(); ++i) y.data[i] = in[1].data[i % 7];
                return y;
              }};
}

// Where the operands are equal, each gets half of the gradient.
OpSample Ties() {
  return {.name = "ties",
          .inputs = {{.shape = {5, 7}}},
          .run =
              [](TensorSpan in) {
                return ops::Maximum(in[0], in[0]) + 2.0 * ops::Minimum(in[0], in[0]);
              },
          .reference = OfEach([](double v) { return v * 3; })};
}

// ---- With a number ----

struct NumberFunction {
  const char* name;
  Tensor (*run)(const Tensor&);
  double (*reference)(double);
  bool kinks = false;
};

// 0.3 is no 16-bit float, and must not become one.
const NumberFunction kNumberFunctions[] = {
    {"x_plus_number", [](const Tensor& x) { return x + 0.3; }, [](double x) { return x + 0.3; }},
    {"number_plus_x", [](const Tensor& x) { return 0.3 + x; }, [](double x) { return 0.3 + x; }},
    {"x_minus_number", [](const Tensor& x) { return x - 0.3; }, [](double x) { return x - 0.3; }},
    {"number_minus_x", [](const Tensor& x) { return 0.3 - x; }, [](double x) { return 0.3 - x; }},
    {"number_over_x", [](const Tensor& x) { return 0.3 / x; }, [](double x) { return 0.3 / x; }},
    {"maximum_with_number", [](const Tensor& x) { return ops::Maximum(x, 1.3); },
     [](double x) { return std::max(x, 1.3); }, true},
    {"minimum_with_number", [](const Tensor& x) { return ops::Minimum(x, 1.3); },
     [](double x) { return std::min(x, 1.3); }, true},
    {"number_to_the_x", [](const Tensor& x) { return ops::Pow(0.3, x); },
     [](double x) { return std::pow(0.3, x); }},
    {"zero_to_the_x", [](const Tensor& x) { return ops::Pow(0, x); }, [](double) { return 0.0; }}};

OpSample NumberSample(const NumberFunction& f, const std::string& name, const InputSpec& x) {
  return {.name = StrCat(f.name, name),
          .inputs = {x},
          .run = [f](TensorSpan in) { return f.run(in[0]); },
          .reference = OfEach(f.reference),
          .kinks = f.kinks};
}

// Rows of a view that could be read by packs, but begin anywhere: a[:, 1:] * b.
OpSample View() {
  return {.name = "view",
          .inputs = {{.shape = {5, 17}}, {.shape = {16}}},
          .run = [](TensorSpan in) { return ops::Mul(in[0].Slice(1, 1, 17), in[1]); },
          .reference =
              [](RefSpan in) {
                return FromElements({5, 16}, [&](int64_t i) {
                  return in[0].data[i / 16 * 17 + i % 16 + 1] * in[1].data[i % 16];
                });
              }};
}

// Broadcast, by tensors and by numbers.
OpSample Integers() {
  const InputSpec x{.shape = {6, 11}, .low = -50, .high = 50, .index = true};
  return {.name = "integers",
          .inputs = {x, {.shape = {11}, .low = -50, .high = 50, .index = true}},
          .run =
              [](TensorSpan in) {
                const Tensor &a = in[0], &b = in[1];
                return std::vector{a + b,      a - b, a * b, ops::Maximum(a, b), ops::Minimum(b, a),
                                   3.0 - a * 2};
              },
          .reference =
              [](RefSpan in) {
                std::vector<RefTensor> out(6, RefTensor({6, 11}));
                for (size_t i = 0; i < 66; ++i) {
                  const double a = in[0].data[i], b = in[1].data[i % 11];
                  const double results[] = {a + b,          a - b,          a * b,
                                            std::max(a, b), std::min(a, b), 3 - 2 * a};
                  for (size_t k = 0; k < 6; ++k) out[k].data[i] = results[k];
                }
                return out;
              }};
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> samples = {Shared(), Operators(), View(), Ties(), Integers()};
  for (const NumberFunction& f : kNumberFunctions) {
    const InputSpec odd{.shape = {7, 13}, .low = 0.4, .high = 2};
    InputSpec strided = odd;
    strided.non_contiguous = true;
    samples.push_back(NumberSample(f, "_odd", odd));
    samples.push_back(NumberSample(f, "_transposed", strided));
  }
  for (const Function& f : kFunctions) {
    OpSample long_bias = Sample(f, "long_bias", {600, 70}, {70}, {600, 70});
    // One element of b takes part 600 times, and some of these are at a kink.
    long_bias.finite_differences = !f.kinks;
    const std::vector<OpSample> some = {
        Sample(f, "empty", {0, 3}, {0, 3}, {0, 3}),
        Sample(f, "empty_broadcast", {0, 3}, {1, 3}, {0, 3}),
        Sample(f, "scalars", {}, {}, {}),
        Sample(f, "one", {1}, {1}, {1}),
        Sample(f, "odd", {7, 13}, {7, 13}, {7, 13}),
        Sample(f, "chunks", {33001}, {33001}, {33001}),
        Sample(f, "bias", {6, 11}, {11}, {6, 11}),
        Sample(f, "bias_first", {11}, {6, 11}, {6, 11}),
        Sample(f, "column", {6, 11}, {6, 1}, {6, 11}),
        Sample(f, "with_scalar", {6, 11}, {}, {6, 11}),
        Sample(f, "outer", {5, 1}, {1, 7}, {5, 7}),
        Sample(f, "middle", {2, 3, 4}, {2, 1, 4}, {2, 3, 4}),
        Sample(f, "two_runs", {2, 3, 4, 3}, {3, 1, 3}, {2, 3, 4, 3}),
        Sample(f, "ones", {1, 3}, {2, 1, 1, 3}, {2, 1, 1, 3}),
        long_bias,
        Sample(f, "transposed", {5, 9}, {5, 9}, {5, 9}, true),
        Sample(f, "transposed_broadcast", {4, 5, 1}, {5, 6}, {4, 5, 6}, true),
        Benchmark(f, "same", {4096, 768}),
        Benchmark(f, "bias_large", {768})};
    samples.insert(samples.end(), some.begin(), some.end());
  }
  return samples;
}

std::vector<ErrorSample> Errors() {
  return {{"shapes", [](Device d) { ops::Add(Zeros(d, 2, 3), Zeros(d, 2)); },
           "add: shapes [2, 3] and [2] do not broadcast"},
          {"dtypes", [](Device d) { ops::Mul(Zeros(d, 2), Zeros(DType::kF64, d, 2)); },
           "mul: both operands must have the same floating dtype and device, got f32[2]"},
          {"integers",
           [](Device d) {
             const Tensor x = Zeros(DType::kI32, d, 2);
             ops::Div(x, x);
           },
           "div: both operands must have the same floating dtype"},
          {"integers_and_a_fraction", [](Device d) { 1.5 - Zeros(DType::kI32, d, 2); },
           "sub: i32[2] on cpu cannot have the value 1.5; convert it with To()"},
          {"bools",
           [](Device d) {
             const Tensor x = Zeros(DType::kBool, d, 2);
             ops::Add(x, x);
           },
           "add: both operands must have the same floating dtype and device, got bool[2]"},
          {"undefined", [](Device d) { ops::Div(Zeros(d, 2), Tensor()); }, "and undefined tensor"}};
}

const bool registered = RegisterOpCase({.name = "binary", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
