#include "kernels/checks.h"

#include <cmath>

namespace lockstep {

void CheckFloating(const char* op, const Tensor& x, const char* argument) {
  LS_CHECK(x.defined(), op, ": ", argument, " must be a floating tensor, got ", x.Describe());
  LS_CHECK(IsFloating(x.dtype()), op, ": ", argument, " must be a floating tensor, got ",
           x.Describe(), "; cast it with To(DType::kF32)");
}

bool HasValue(DType dtype, double number) {
  if (IsFloating(dtype)) return true;
  if (number != std::floor(number)) return false;
  switch (dtype) {
    case DType::kI64:
      return -0x1p63 <= number && number < 0x1p63;
    case DType::kI32:
      return -0x1p31 <= number && number < 0x1p31;
    case DType::kU16:
      return 0 <= number && number < 0x1p16;
    case DType::kU8:
      return 0 <= number && number < 0x1p8;
    default:
      return number == 0 || number == 1;
  }
}

void CheckHasValue(const char* op, DType dtype, double number) {
  LS_CHECK(HasValue(dtype, number), op, ": a tensor of ", dtype, " cannot have the value ", number,
           "; take another dtype");
}

Tensor NumberLike(const char* op, double number, const Tensor& x) {
  LS_CHECK(x.defined(), op, " of an undefined tensor");
  LS_CHECK(HasValue(x.dtype(), number), op, ": ", x.Describe(), " cannot have the value ", number,
           "; convert it with To()");
  return Tensor::Full({}, number, x.dtype(), x.device());
}

void CheckSorts(const char* op, const char* why, Device device, int64_t elements, int64_t keys) {
  constexpr int64_t kMost = int64_t{1} << 30;
  LS_CHECK(!device.is_cuda() || (elements <= kMost && keys < kMost), op, ": ", why, ", and ",
           elements, " elements", keys > 0 ? StrCat(" for ", keys, " places") : std::string(),
           " are more than CUDA devices sort at once (2^30): cut them into slices");
}

void CheckPositions(const char* op, const Tensor& positions, int64_t b, int64_t t, Device device,
                    int64_t rows) {
  if (!positions.defined()) return;
  LS_CHECK(positions.dtype() == DType::kI32 && positions.shape() == Shape({b, t}) &&
               positions.device() == device,
           op, ": positions must be i32[", b, ", ", t, "], one for each token, on ", device,
           ", got ", positions.Describe());
  if (!device.is_cpu()) return;
  const Tensor values = positions.Contiguous();
  const int32_t* position = values.data<int32_t>();
  for (int64_t i = 0; i < b * t; ++i) {
    LS_CHECK(position[i] >= 0 && position[i] < rows, op, ": the position ", position[i], " at [",
             i / t, ", ", i % t, "] is not in [0, ", rows, "), the positions of the table");
  }
}

void CheckNormInput(const char* op, const Tensor& x, double eps) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() >= 1 && x.dim(-1) > 0, op,
           ": x must be a floating [..., C] with C > 0, got ", x.Describe());
  LS_CHECK(eps >= 0, op, ": eps must not be negative, got ", eps);
}

void CheckNormParameter(const char* op, const char* name, const Tensor& t, const Tensor& x,
                        int64_t c) {
  const bool dtype_fits = t.defined() && (t.dtype() == x.dtype() || t.dtype() == DType::kF32);
  LS_CHECK(dtype_fits && t.shape() == Shape{c} && t.device() == x.device(), op, ": ", name,
           " must be ", x.dtype(), "[", c, "] on ", x.device(), " as x is ", x.Describe(), ", got ",
           t.Describe());
}

void CheckTargets(const char* op, const Tensor& targets, const char* name, const Tensor& scores) {
  LS_CHECK(targets.defined() && (targets.dtype() == DType::kI32 || targets.dtype() == DType::kI64),
           op, ": targets must be i32 or i64, got ", targets.Describe());
  const Shape rows(std::span(scores.shape().begin(), scores.shape().end() - 1));
  LS_CHECK(targets.shape() == rows && targets.device() == scores.device(), op,
           ": targets must have the shape of ", name, " without the last dimension, ", rows, " on ",
           scores.device(), ", got ", targets.Describe());
}

void ThrowTarget(const char* op, int64_t target, int64_t position, int64_t classes,
                 int64_t ignore_index) {
  throw ArgumentError(StrCat(
      op, ": target ", target, " at position ", position, " is outside of the ", classes,
      " classes and is not ignore_index = ", ignore_index,
      target < 0 ? StrCat("; to leave such rows out, pass ", target, " as ignore_index") : ""));
}

}  // namespace lockstep
