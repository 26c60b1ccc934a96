#include "kernels/integers.h"

#include "core/broadcast.h"

namespace lockstep {

bool IsInteger(DType dtype) { return !IsFloating(dtype) && dtype != DType::kBool; }

Tensor IntegerArithmetic(const char* name, IntegerOp op, const Tensor& a, const Tensor& b) {
  const Shape shape = BroadcastShape(name, a.shape(), b.shape());
  const Tensor y = Tensor::Empty(shape, a.dtype(), a.device());
  integer_arithmetic(CurrentStream(a.device()), op, a.Expand(shape), b.Expand(shape), y);
  return y;
}

}  // namespace lockstep
