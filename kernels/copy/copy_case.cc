#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// Copies into a fresh tensor of dtype `to` (the input's if that is f64), contiguous or strided.
OpSample Sample(const std::string& name, const InputSpec& x, DType to = DType::kF64,
                bool strided_target = false) {
  return {.name = name,
          .inputs = {x},
          .run =
              [=](TensorSpan in) {
                const Tensor x = in[0].Detach();
                const DType dtype = to == DType::kF64 ? x.dtype() : to;
                Tensor y = Tensor::Empty(x.shape(), dtype, x.device());
                if (strided_target) {
                  y = Tensor::Empty({x.dim(1), x.dim(0) + 1}, dtype, x.device());
                  y = y.Slice(1, 1, x.dim(0) + 1).Transpose(0, 1);
                }
                y.CopyFrom(x);
                return y;
              },
          .reference = OfEach([to](double v) { return RoundTo(to, v); })};
}

std::vector<OpSample> Samples() {
  const InputSpec wide{.shape = {7, 11}, .low = -300, .high = 300, .non_contiguous = true};
  const InputSpec integers{.shape = {7, 11}, .low = -2, .high = 3, .index = true};
  std::vector<OpSample> s = {Sample("empty", {.shape = {0, 4}}),
                             Sample("one", {.shape = {}}),
                             Sample("odd", {.shape = {3, 5, 7}}),
                             Sample("chunks", {.shape = {50001}}),
                             Sample("from_strided", wide),
                             Sample("to_strided", {.shape = {7, 11}}, DType::kF64, true),
                             Sample("strided_to_strided", wide, DType::kF64, true),
                             Sample("to_f32", wide, DType::kF32),
                             Sample("to_bf16", wide, DType::kBF16),
                             Sample("to_f16", wide, DType::kF16),
                             Sample("to_i32", wide, DType::kI32),
                             Sample("to_i64", wide, DType::kI64),
                             Sample("to_bool", integers, DType::kBool)};
  OpSample large = Sample("large", {.shape = {8 << 20}});
  large.benchmark = {.elements = 2.0 * (8 << 20)};
  s.push_back(large);
  return s;
}

std::vector<ErrorSample> Errors() {
  return {{"shapes", [](Device d) { Zeros(d, 2, 3).CopyFrom(Zeros(d, 3, 2)); },
           "copy of f32[3, 2] on cpu into f32[2, 3] on cpu: the shapes differ"}};
}

// A copy is exact, and rounding has one answer.
const bool registered = RegisterOpCase({.name = "copy",
                                        .samples = Samples,
                                        .errors = Errors,
                                        .tolerances = NoTolerance(),
                                        .differentiable = false});

}  // namespace
}  // namespace lockstep
