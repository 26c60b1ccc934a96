#include "kernels/nll_loss/nll_loss.h"

#include "core/autograd/node.h"
#include "kernels/checks.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

namespace lockstep::ops {
namespace {

void Check(const Tensor& log_probs, const Tensor& targets) {
  LS_CHECK(log_probs.defined() && IsFloating(log_probs.dtype()) && log_probs.ndim() >= 1 &&
               log_probs.dim(-1) > 0,
           "nll_loss: log_probs must be a floating tensor [..., V] with V > 0, got ",
           log_probs.Describe());
  CheckTargets("nll_loss", targets, "log_probs", log_probs);
}

}  // namespace

Tensor NllLoss(const Tensor& log_probs, const Tensor& targets, Reduction reduction,
               int64_t ignore_index) {
  Check(log_probs, targets);
  const int64_t rows = targets.numel();
  const Tensor classes = targets.Detach().Contiguous().View({rows});
  const Tensor losses =
      Tensor::Empty({rows}, AccumulationDType(log_probs.dtype()), log_probs.device());
  nll_loss_forward(CurrentStream(losses.device()),
                   log_probs.Detach().Contiguous().View({rows, log_probs.dim(-1)}), classes,
                   ignore_index, losses);
  auto [result, scale] = ReduceLosses(losses, classes, reduction, ignore_index);
  if (reduction == Reduction::kNone) result = losses.View(targets.shape());
  RecordOp("nll_loss", {&log_probs}, {&result},
           {{classes, "the targets of nll_loss"}, {scale, "the scale of nll_loss"}},
           [ignore_index](const SavedTensors& saved, Gradients& grads) {
             const Tensor targets = saved[0], scale = saved[1];
             const auto [dx, accumulate] = grads.Open(0);
             if (!accumulate) dx.Fill(0);
             if (dx.numel() == 0) return;
             nll_loss_backward(CurrentStream(dx.device()), targets, ignore_index,
                               grads[0].View({-1}), scale, dx.View({-1, dx.dim(-1)}));
           });
  return result;
}

}  // namespace lockstep::ops
