#include "kernels/scale/scale.h"

#include "core/autograd/node.h"
#include "kernels/checks.h"
#include "kernels/integers.h"

namespace lockstep::ops {
namespace {

Tensor Scaled(const Tensor& x, ScaleBy by, double alpha) {
  CheckFloating("scale", x);
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Tensor::EmptyLike(input);
  scale_slot(CurrentStream(x.device()), input, by, alpha, y, false);
  RecordOp("scale", {&x}, {&y}, {}, [by, alpha](const SavedTensors&, Gradients& grads) {
    const auto [dx, accumulate] = grads.Open(0);
    scale_slot(CurrentStream(dx.device()), grads[0], by, alpha, dx, accumulate);
  });
  return y;
}

}  // namespace

Tensor Scale(const Tensor& x, double alpha) {
  if (x.defined() && IsInteger(x.dtype())) {
    return IntegerArithmetic("scale", IntegerOp::kMul, x, NumberLike("scale", alpha, x));
  }
  return Scaled(x, ScaleBy::kFactor, alpha);
}
Tensor Divide(const Tensor& x, double divisor) { return Scaled(x, ScaleBy::kDivisor, divisor); }

void ScaleInPlace(const Tensor& x, double alpha) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.is_contiguous(),
           "ScaleInPlace: x must be a contiguous floating tensor, got ", x.Describe());
  LS_CHECK(!NeedsGrad({&x}),
           "ScaleInPlace of a tensor that requires a gradient: use ops::Scale, or Detach() first");
  x.storage().BumpVersion();
  scale_slot(CurrentStream(x.device()), x, ScaleBy::kFactor, alpha, x, false);
}

}  // namespace lockstep::ops
