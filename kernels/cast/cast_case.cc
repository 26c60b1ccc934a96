#include "kernels/cast/cast.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

OpSample Sample(const std::string& name, const InputSpec& x, DType to) {
  return {.name = name,
          .inputs = {x},
          .run = [to](TensorSpan in) { return ops::Cast(in[0], to); },
          .reference = OfEach([to](double v) { return RoundTo(to, v); }),
          .finite_differences = to == DType::kF64};
}

// To f32 and back, with both ends of the graph in the dtype under test.
OpSample ThereAndBack() {
  OpSample s = Sample("there_and_back", {.shape = {7, 11}}, DType::kF32);
  s.run = [](TensorSpan in) { return ops::Cast(ops::Cast(in[0], DType::kF32), in[0].dtype()); };
  return s;
}

std::vector<OpSample> Samples() {
  const InputSpec wide{.shape = {7, 11}, .low = -300, .high = 300};
  InputSpec strided = wide;
  strided.non_contiguous = true;
  OpSample large = Sample("large_to_bf16", {.shape = {8 << 20}}, DType::kBF16);
  // From f32.
  large.benchmark = {.elements = 1.5 * (8 << 20), .backward_elements = 1.5 * (8 << 20)};
  return {Sample("empty", {.shape = {0, 2}}, DType::kF64),
          Sample("one", {.shape = {}}, DType::kF64),
          Sample("to_f64", wide, DType::kF64),
          Sample("to_f32", wide, DType::kF32),
          Sample("to_f16", wide, DType::kF16),
          Sample("to_bf16", wide, DType::kBF16),
          Sample("chunks", {.shape = {33001}}, DType::kF64),
          Sample("transposed", strided, DType::kF64),
          ThereAndBack(),
          large};
}

std::vector<ErrorSample> Errors() {
  return {{"from_integers", [](Device d) { ops::Cast(Zeros(DType::kI32, d, 2), DType::kF32); },
           "cast: only floating tensors are cast to floating dtypes, got i32[2]"},
          {"to_integers", [](Device d) { ops::Cast(Zeros(d, 2), DType::kI32); },
           "and i32; for others use Tensor::To"}};
}

// Rounding has only one right answer.
const bool registered = RegisterOpCase(
    {.name = "cast", .samples = Samples, .errors = Errors, .tolerances = NoTolerance()});

}  // namespace
}  // namespace lockstep
