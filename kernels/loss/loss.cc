#include "kernels/loss/loss.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/checks.h"
#include "kernels/reduce/reduce.h"

namespace lockstep::ops {
namespace {

class LossNode : public Node {
 public:
  LossNode(LossKind kind, const char* name, const Tensor& x, const Tensor& target)
      : Node(name),
        kind_(kind),
        x_(x, "the prediction of a loss"),
        target_(target, "the target of a loss") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    const Tensor x = x_.Unpack(), target = target_.Unpack();
    const Stream stream = CurrentStream(x.device());
    for (int which = 0; which < 2; ++which) {
      if (!needs[which]) continue;
      const GradSink::Target dx = sinks[which].Open(x);
      loss_backward(stream, kind_, which, x, target, grads[0], dx.tensor, dx.accumulate);
    }
  }
  void Release() override {
    x_.Reset();
    target_.Reset();
  }

 private:
  LossKind kind_;
  SavedTensor x_, target_;
};

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
  if (NeedsGrad({&x, &target})) {
    Record(std::make_shared<LossNode>(kind, name, from, to), {&x, &target}, {&losses});
  }
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
