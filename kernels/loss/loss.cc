#include "kernels/loss/loss.h"

#include "core/autograd/node.h"
#include "kernels/checks.h"
#include "kernels/reduce/reduce.h"

namespace lockstep::ops {
namespace {

Tensor Apply(LossKind kind, const char* name, const Tensor& x, const Tensor& target,
             Reduction reduction) {
  CheckFloating(name, x);
  LS_CHECK(target.defined() && target.shape() == x.shape() && target.dtype() == x.dtype() &&
               target.device() == x.device(),
           name, ": the target must have the shape, dtype and device of x, ", x.Describe(),
           ", got ", target.Describe(), "; use Expand or To");
  const Tensor from = x.Detach().Contiguous(), to = target.Detach().Contiguous();
  const DType wide = AccumulationDType(x.dtype());
  Tensor losses = Tensor::Empty(x.shape(), wide, x.device());
  loss_forward(CurrentStream(x.device()), kind, from, to, losses);
  RecordOp(name, {&x, &target}, {&losses},
           {{from, "the prediction of a loss"}, {to, "the target of a loss"}},
           [kind](const SavedTensors& saved, Gradients& grads) {
             const Tensor x = saved[0], target = saved[1];
             for (const int which : {0, 1}) {
               const auto [dx, accumulate] = grads.Open(which);
               if (!dx.defined()) continue;
               loss_backward(CurrentStream(dx.device()), kind, which, x, target, grads[0], dx,
                             accumulate);
             }
           });
  if (reduction == Reduction::kNone) return losses;
  return reduction == Reduction::kSum ? Sum(losses) : Mean(losses);
}

}  // namespace

Tensor MseLoss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return Apply(LossKind::kMse, "mse_loss", x, target, reduction);
}
Tensor L1Loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return Apply(LossKind::kL1, "l1_loss", x, target, reduction);
}
Tensor BceWithLogits(const Tensor& x, const Tensor& target, Reduction reduction) {
  return Apply(LossKind::kBceWithLogits, "bce_with_logits", x, target, reduction);
}

}  // namespace lockstep::ops
