#include "kernels/residual/residual.h"

#include "core/autograd/node.h"
#include "kernels/checks.h"

namespace lockstep::ops {

Tensor Residual(const Tensor& x, const Tensor& branch) {
  CheckFloating("residual", x);
  LS_CHECK(branch.defined() && branch.shape() == x.shape() && branch.dtype() == x.dtype() &&
               branch.device() == x.device(),
           "residual: the branch must match x (", x.Describe(), "), got ", branch.Describe());
  const Tensor a = x.Detach().Contiguous(), b = branch.Detach().Contiguous();
  Tensor y = Tensor::EmptyLike(a);
  residual_forward(CurrentStream(x.device()), a, b, y);
  RecordOp("residual", {&x, &branch}, {&y}, {},
           [](const SavedTensors&, Gradients& grads) { grads.PutAll(grads[0]); });
  return y;
}

}  // namespace lockstep::ops
