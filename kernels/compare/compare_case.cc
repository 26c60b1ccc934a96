#include <cmath>
#include <limits>

#include "kernels/compare/compare.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

struct Comparison {
  const char* name;
  Tensor (*run)(const Tensor&, const Tensor&);
  Tensor (*with_number)(const Tensor&, double);
  Tensor (*with_operator)(const Tensor&, const Tensor&);
  bool (*reference)(double, double);
};

const Comparison kComparisons[] = {
    {"equal", ops::Equal, ops::Equal, ops::Equal, [](double a, double b) { return a == b; }},
    {"not_equal", ops::NotEqual, ops::NotEqual, ops::NotEqual,
     [](double a, double b) { return a != b; }},
    {"less", ops::Less, ops::Less, [](const Tensor& a, const Tensor& b) { return a < b; },
     [](double a, double b) { return a < b; }},
    {"less_equal", ops::LessEqual, ops::LessEqual,
     [](const Tensor& a, const Tensor& b) { return a <= b; },
     [](double a, double b) { return a <= b; }},
    {"greater", ops::Greater, ops::Greater, [](const Tensor& a, const Tensor& b) { return a > b; },
     [](double a, double b) { return a > b; }},
    {"greater_equal", ops::GreaterEqual, ops::GreaterEqual,
     [](const Tensor& a, const Tensor& b) { return a >= b; },
     [](double a, double b) { return a >= b; }}};

// Small integers, so that many are equal.
InputSpec Integers(const Shape& shape, double low, double high) {
  return {.shape = shape, .low = low, .high = high, .index = true};
}

RefTensor Compared(const Comparison& c, const RefTensor& a, const RefTensor& b, const Shape& y) {
  return FromElements(
      y, [&](int64_t i) { return c.reference(BroadcastAt(a, y, i), BroadcastAt(b, y, i)); });
}

// In the dtype under test, which the third input has.
OpSample Sample(const Comparison& c, const std::string& name, const Shape& a, const Shape& b,
                const Shape& y) {
  return {.name = StrCat(c.name, "_", name),
          .inputs = {Integers(a, -2, 3), Integers(b, -2, 3), {.shape = {1}}},
          .run =
              [c](TensorSpan in) {
                const DType dtype = in[2].dtype();
                return c.run(in[0].To(dtype), in[1].To(dtype));
              },
          .reference = [c, y](RefSpan in) { return Compared(c, in[0], in[1], y); }};
}

// Views, whose elements differ by less than 16-bit floats can tell.
OpSample Strided(const Comparison& c) {
  const InputSpec x{.shape = {5, 9}, .low = 0.99, .non_contiguous = true};
  return {.name = StrCat(c.name, "_transposed"),
          .inputs = {x, x},
          .run = [c](TensorSpan in) { return c.with_operator(in[0], in[1]); },
          .reference =
              [c](RefSpan in) {
                return Compared(c, in[0], in[1], {5, 9});
              }};
}

// In this dtype, whatever is under test. Not negative, since unsigned integers take part.
OpSample OfDType(const Comparison& c, DType dtype) {
  return {.name = StrCat(c.name, "_of_", dtype),
          .inputs = {Integers({6, 11}, 0, 2), Integers({6, 1}, 0, 2)},
          .run = [c, dtype](TensorSpan in) { return c.run(in[0].To(dtype), in[1].To(dtype)); },
          .reference =
              [c](RefSpan in) {
                return Compared(c, in[0], in[1], {6, 11});
              }};
}

// With integers, and with floats of the dtype under test.
OpSample WithNumber(const Comparison& c) {
  return {
      .name = StrCat(c.name, "_with_number"),
      .inputs = {Integers({7, 13}, -2, 3), {.shape = {1}}},
      .run =
          [c](TensorSpan in) {
            return std::vector{c.with_number(in[0], 1), c.with_number(in[0].To(in[1].dtype()), 1)};
          },
      .reference =
          [c](RefSpan in) {
            RefTensor one(Shape{});
            one.data[0] = 1;
            return std::vector(2, Compared(c, in[0], one, {7, 13}));
          }};
}

OpSample NumberFirst() {
  return {.name = "number_first",
          .inputs = {Integers({7, 13}, -2, 3)},
          .run =
              [](TensorSpan in) {
                return std::vector{1 < in[0], 1 <= in[0], 1 > in[0], 1 >= in[0]};
              },
          .reference =
              [](RefSpan in) {
                std::vector<RefTensor> out(4, in[0]);
                for (size_t i = 0; i < in[0].data.size(); ++i) {
                  const double x = in[0].data[i];
                  out[0].data[i] = 1 < x;
                  out[1].data[i] = 1 <= x;
                  out[2].data[i] = 1 > x;
                  out[3].data[i] = 1 >= x;
                }
                return out;
              }};
}

OpSample Logic() {
  return {.name = "logic",
          .inputs = {Integers({6, 11}, 0, 2), Integers({11}, 0, 2)},
          .run =
              [](TensorSpan in) {
                const Tensor a = ops::NotEqual(in[0], 0), b = in[1].To(DType::kBool);
                return std::vector{a & b, a | b, !a};
              },
          .reference =
              [](RefSpan in) {
                std::vector<RefTensor> out(3, in[0]);
                for (size_t i = 0; i < in[0].data.size(); ++i) {
                  const bool a = in[0].data[i] != 0, b = in[1].data[i % 11] != 0;
                  out[0].data[i] = a && b;
                  out[1].data[i] = a || b;
                  out[2].data[i] = !a;
                }
                return out;
              }};
}

// Rows of -infinity, NaN, infinity and a number.
OpSample Special() {
  return {.name = "special",
          .inputs = {{.shape = {4, 5}}},
          .run =
              [](TensorSpan in) {
                constexpr double kInf = std::numeric_limits<double>::infinity();
                const Tensor t = Tensor::Full({4, 5}, 65504, in[0].dtype(), in[0].device());
                t.Slice(0, 0, 1).Fill(-kInf);
                t.Slice(0, 1, 2).Fill(std::nan(""));
                t.Slice(0, 2, 3).Fill(kInf);
                return std::vector{ops::IsNan(t), ops::IsFinite(t), t < t,
                                   t <= t,        ops::Equal(t, t), t < kInf};
              },
          .reference =
              [](RefSpan in) {
                std::vector<RefTensor> out(6, RefTensor(in[0].shape));
                for (size_t i = 0; i < in[0].data.size(); ++i) {
                  const size_t row = i / 5;
                  out[0].data[i] = row == 1;
                  out[1].data[i] = row == 3;
                  out[3].data[i] = out[4].data[i] = row != 1;
                  out[5].data[i] = row == 0 || row == 3;
                }
                return out;
              }};
}

OpSample Benchmark() {
  OpSample s = Sample(kComparisons[2], "large", {4096, 768}, {768}, {4096, 768});
  s.inputs = {{.shape = {4096, 768}}, {.shape = {768}}};
  s.run = [](TensorSpan in) { return in[0] < in[1]; };
  s.benchmark = {.flops = 4096 * 768, .elements = 4096 * 768};
  return s;
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> samples = {NumberFirst(), Logic(), Special(), Benchmark()};
  for (const Comparison& f : kComparisons) {
    const std::vector<OpSample> some = {Sample(f, "empty", {0, 3}, {1, 3}, {0, 3}),
                                        Sample(f, "scalars", {}, {}, {}),
                                        Sample(f, "odd", {7, 13}, {7, 13}, {7, 13}),
                                        Sample(f, "chunks", {33001}, {33001}, {33001}),
                                        Sample(f, "bias", {6, 11}, {11}, {6, 11}),
                                        Sample(f, "outer", {5, 1}, {1, 7}, {5, 7}),
                                        Strided(f),
                                        WithNumber(f),
                                        OfDType(f, DType::kI64),
                                        OfDType(f, DType::kI32),
                                        OfDType(f, DType::kU16),
                                        OfDType(f, DType::kU8),
                                        OfDType(f, DType::kBool)};
    samples.insert(samples.end(), some.begin(), some.end());
  }
  return samples;
}

std::vector<ErrorSample> Errors() {
  return {
      {"dtypes", [](Device d) { ops::Equal(Zeros(DType::kI32, d, 2), Zeros(DType::kI64, d, 2)); },
       "equal: both operands must have the same dtype and device, got i32[2]"},
      {"shapes", [](Device d) { ops::Less(Zeros(d, 2), Zeros(d, 3)); },
       "less: shapes [2] and [3] do not broadcast"},
      {"undefined", [](Device d) { ops::Less(Zeros(d, 2), Tensor()); }, "and undefined tensor"},
      {"undefined_with_number", [](Device) { ops::Less(Tensor(), 1); },
       "less of an undefined tensor"},
      {"fraction_of_integers", [](Device d) { Zeros(DType::kI32, d, 2) > 2.5; },
       "greater: i32[2] on cpu cannot have the value 2.5; convert it with To()"},
      {"negative_of_unsigned", [](Device d) { Zeros(DType::kU8, d, 2) >= -1; },
       "greater_equal: u8[2] on cpu cannot have the value -1"},
      {"beyond_i32", [](Device d) { ops::Equal(Zeros(DType::kI32, d, 2), 0x1p31); },
       "equal: i32[2] on cpu cannot have the value 2"},
      {"two_of_bools", [](Device d) { ops::Equal(Zeros(DType::kBool, d, 2), 2); },
       "equal: bool[2] on cpu cannot have the value 2"},
      {"logic_of_floats", [](Device d) { ops::LogicalAnd(Zeros(DType::kBool, d, 2), Zeros(d, 2)); },
       "logical_and takes bool tensors, got f32[2] on cpu; ops::NotEqual(x, 0) makes one"},
      {"or_of_integers",
       [](Device d) { ops::LogicalOr(Zeros(DType::kI32, d, 2), Zeros(DType::kBool, d, 2)); },
       "logical_or takes bool tensors, got i32[2]"},
      {"not_of_integers", [](Device d) { ops::LogicalNot(Zeros(DType::kI32, d, 2)); },
       "logical_not takes bool tensors, got i32[2]"},
      {"nan_of_integers", [](Device d) { ops::IsNan(Zeros(DType::kI32, d, 2)); },
       "is_nan: x must be a floating tensor, got i32[2]"},
      {"finite_integers", [](Device d) { ops::IsFinite(Zeros(DType::kI64, d, 2)); },
       "is_finite: x must be a floating tensor, got i64[2]"}};
}

// Holds or does not.
const bool registered = RegisterOpCase({.name = "compare",
                                        .samples = Samples,
                                        .errors = Errors,
                                        .tolerances = NoTolerance(),
                                        .differentiable = false});

}  // namespace
}  // namespace lockstep
