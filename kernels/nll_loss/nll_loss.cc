#include "kernels/nll_loss/nll_loss.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

namespace lockstep::ops {
namespace {

class NllLossNode : public Node {
 public:
  NllLossNode(const Tensor& targets, const Tensor& scale, const Tensor& log_probs,
              int64_t ignore_index)
      : Node("nll_loss"),
        targets_(targets, "the targets of nll_loss"),
        scale_(scale, "the scale of nll_loss"),
        shape_(log_probs.shape()),
        dtype_(log_probs.dtype()),
        ignore_index_(ignore_index) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor& dy = grads[0];
    const GradSink::Target dx = sinks[0].Open(shape_, dtype_, dy.device());
    if (!dx.accumulate) dx.tensor.Fill(0);
    if (dx.tensor.numel() == 0) return;
    nll_loss_backward(CurrentStream(dy.device()), targets_.Unpack(), ignore_index_, dy.View({-1}),
                      scale_.Unpack(), dx.tensor.View({-1, shape_[-1]}));
  }
  void Release() override {
    targets_.Reset();
    scale_.Reset();
  }

 private:
  SavedTensor targets_, scale_;
  Shape shape_;  // of the logarithms, and their dtype
  DType dtype_;
  int64_t ignore_index_;
};

void Check(const Tensor& log_probs, const Tensor& targets) {
  LS_CHECK(log_probs.defined() && IsFloating(log_probs.dtype()) && log_probs.ndim() >= 1 &&
               log_probs.dim(-1) > 0,
           "nll_loss: log_probs must be a floating tensor [..., V] with V > 0, got ",
           log_probs.Describe());
  LS_CHECK(targets.defined() && (targets.dtype() == DType::kI32 || targets.dtype() == DType::kI64),
           "nll_loss: targets must be i32 or i64, got ", targets.Describe());
  const Shape rows(std::span(log_probs.shape().begin(), log_probs.shape().end() - 1));
  LS_CHECK(targets.shape() == rows && targets.device() == log_probs.device(),
           "nll_loss: targets must have the shape of log_probs without the last dimension, ", rows,
           " on ", log_probs.device(), ", got ", targets.Describe());
}

}  // namespace

Tensor NllLoss(const Tensor& log_probs, const Tensor& targets, Reduction reduction,
               int64_t ignore_index) {
  Check(log_probs, targets);
  const Device device = log_probs.device();
  const Stream stream = CurrentStream(device);
  const DType wide = AccumulationDType(log_probs.dtype());
  const int64_t rows = targets.numel();
  const Tensor classes = targets.Detach().Contiguous().View({rows});
  const Tensor losses = Tensor::Empty({rows}, wide, device);
  nll_loss_forward(stream, log_probs.Detach().Contiguous().View({rows, log_probs.dim(-1)}), classes,
                   ignore_index, losses);
  Tensor scale = Tensor::Full({1}, 1, wide, device), result = losses.View(targets.shape());
  if (reduction != Reduction::kNone) {
    result = Tensor::Empty({}, wide, device);
    cross_entropy_reduce(stream, {.losses = losses,
                                  .targets = classes,
                                  .ignore_index = ignore_index,
                                  .mean = reduction == Reduction::kMean,
                                  .total = result,
                                  .scale = scale});
  }
  if (NeedsGrad({&log_probs})) {
    Record(std::make_shared<NllLossNode>(classes, scale, log_probs, ignore_index), {&log_probs},
           {&result});
  }
  return result;
}

}  // namespace lockstep::ops
