
#include "kernels/op_case/op_case.h"
#include "kernels/where/where.h"

namespace lockstep {
namespace {

InputSpec Condition(const Shape& shape) {
  return {.shape = shape, .low = 0, .high = 2, .index = true};
}

std::vector<RefTensor> Chosen(const RefTensor& condition, const RefTensor& a, const RefTensor& b,
                              const Shape& y) {
  return {FromElements(
      y, [&](int64_t i) { return BroadcastAt(BroadcastAt(condition, y, i) != 0 ? a : b, y, i); })};
}

OpSample Sample(const std::string& name, const Shape& condition, const Shape& a, const Shape& b,
                const Shape& y) {
  return {.name = name,
          .inputs = {Condition(condition), {.shape = a}, {.shape = b}},
          .run = [](TensorSpan in) { return ops::Where(in[0].To(DType::kBool), in[1], in[2]); },
          .reference = [y](RefSpan in) { return Chosen(in[0], in[1], in[2], y); }};
}

// All three are views.
OpSample Transposed() {
  OpSample s = Sample("transposed", {9, 5}, {5, 9}, {5, 9}, {5, 9});
  s.inputs[1].non_contiguous = s.inputs[2].non_contiguous = true;
  s.run = [](TensorSpan in) {
    const Tensor condition = in[0].To(DType::kBool).Transpose(0, 1);
    return ops::Where(condition, in[1], in[2]);
  };
  s.reference = [](RefSpan in) {
    RefTensor condition({5, 9});
    for (int64_t i = 0; i < 45; ++i) condition.data[i] = in[0].data[i % 9 * 5 + i / 9];
    return Chosen(condition, in[1], in[2], {5, 9});
  };
  return s;
}

// Both choices are one tensor: each element's gradient comes from one of them.
OpSample Shared() {
  return {.name = "shared",
          .inputs = {Condition({7, 13}), {.shape = {7, 13}}},
          .run = [](TensorSpan in) { return ops::Where(in[0].To(DType::kBool), in[1], in[1]); },
          .reference = [](RefSpan in) { return in[1]; }};
}

OpSample WithNumbers() {
  return {
      .name = "numbers",
      .inputs = {Condition({7, 1}), {.shape = {7, 13}}},
      .run =
          [](TensorSpan in) {
            const Tensor condition = in[0].To(DType::kBool);
            return std::vector{ops::Where(condition, in[1], 0.25), ops::Where(condition, 3, in[1])};
          },
      .reference =
          [](RefSpan in) {
            RefTensor number(Shape{});
            number.data[0] = 0.25;
            std::vector<RefTensor> out = Chosen(in[0], in[1], number, {7, 13});
            number.data[0] = 3;
            out.push_back(Chosen(in[0], number, in[1], {7, 13})[0]);
            return out;
          }};
}

// Elements of 1, 2, 4 and 8 bytes.
OpSample OfDType(DType dtype) {
  return {.name = StrCat("of_", dtype),
          .inputs = {Condition({6, 11}),
                     {.shape = {11}, .low = 0, .high = 2, .index = true},
                     {.shape = {6, 11}, .low = 0, .high = 2, .index = true}},
          .run =
              [dtype](TensorSpan in) {
                return ops::Where(in[0].To(DType::kBool), in[1].To(dtype), in[2].To(dtype));
              },
          .reference =
              [](RefSpan in) {
                return Chosen(in[0], in[1], in[2], {6, 11});
              }};
}

OpSample Benchmark() {
  OpSample s = Sample("large", {4096, 768}, {4096, 768}, {4096, 768}, {4096, 768});
  s.inputs[0] = {.shape = {4096, 768}, .differentiable = false, .dtype = DType::kBool};
  s.run = [](TensorSpan in) { return ops::Where(in[0], in[1], in[2]); };
  s.benchmark = {
      .flops = 4096 * 768, .elements = 3.0 * 4096 * 768, .backward_elements = 3.0 * 4096 * 768};
  return s;
}

std::vector<OpSample> Samples() {
  return {Sample("empty", {3}, {0, 3}, {1, 3}, {0, 3}),
          Sample("scalars", {}, {}, {}, {}),
          Sample("one", {1}, {1}, {1}, {1}),
          Sample("odd", {7, 13}, {7, 13}, {7, 13}, {7, 13}),
          Sample("chunks", {33001}, {33001}, {33001}, {33001}),
          Sample("mask", {11}, {6, 11}, {6, 11}, {6, 11}),
          Sample("column", {6, 11}, {6, 1}, {11}, {6, 11}),
          Sample("scalar", {6, 11}, {6, 11}, {}, {6, 11}),
          Sample("three_ways", {5, 1, 1}, {7, 1}, {3}, {5, 7, 3}),
          Sample("wider_condition", {4, 6, 11}, {11}, {6, 1}, {4, 6, 11}),
          Transposed(),
          Shared(),
          WithNumbers(),
          OfDType(DType::kBool),
          OfDType(DType::kU16),
          OfDType(DType::kI32),
          OfDType(DType::kI64),
          Benchmark()};
}

std::vector<ErrorSample> Errors() {
  return {
      {"condition",
       [](Device d) {
         const Tensor x = Zeros(d, 2);
         ops::Where(x, x, x);
       },
       "where: the condition must be a bool tensor, got f32[2] on cpu: write "
       "condition.To(DType::kBool)"},
      {"undefined_condition", [](Device d) { ops::Where(Tensor(), Zeros(d, 2), 0); },
       "where: the condition must be a bool tensor, got undefined tensor"},
      {"dtypes",
       [](Device d) {
         ops::Where(Zeros(DType::kBool, d, 2), Zeros(d, 2), Zeros(DType::kI32, d, 2));
       },
       "got f32[2] on cpu and i32[2] on cpu"},
      {"undefined", [](Device d) { ops::Where(Zeros(DType::kBool, d, 2), Zeros(d, 2), Tensor()); },
       "got f32[2] on cpu and undefined tensor"},
      {"undefined_beside_a_number",
       [](Device d) { ops::Where(Zeros(DType::kBool, d, 2), Tensor(), 1); },
       "where of an undefined tensor"},
      {"shapes", [](Device d) { ops::Where(Zeros(DType::kBool, d, 2), Zeros(d, 3), 0); },
       "where: shapes [2] and [3] do not broadcast"},
      {"fraction_of_integers",
       [](Device d) { ops::Where(Zeros(DType::kBool, d, 2), Zeros(DType::kI32, d, 2), 0.5); },
       "where: i32[2] on cpu cannot have the value 0.5"}};
}

const bool registered = RegisterOpCase({.name = "where", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
