#include "kernels/cumsum/cumsum.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
Tensor CumSum(const Tensor& x, int dim) {
  LS_CHECK(x.defined(), "cumsum: x is undefined");
  if (!IsFloating(x.dtype()) && x.dtype() != DType::kI64) return CumSum(x.To(DType::kI64), dim);
  const Shape blocks = BlocksAround(x.shape(), DimOf("cumsum", x.shape(), dim));
  Tensor y = Tensor::EmptyLike(x);
  cum_sum(CurrentStream(x.device()), x.Detach().Contiguous().View(blocks), false, y.View(blocks),
          false);
  RecordOp("cumsum", {&x}, {&y}, {}, [blocks](const SavedTensors&, Gradients& grads) {
    const auto [dx, accumulate] = grads.Open(0);
    cum_sum(CurrentStream(dx.device()), grads[0].View(blocks), true, dx.View(blocks), accumulate);
  });
  return y;
}

}  // namespace lockstep::ops
