#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

#include "core/autograd/engine.h"
#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

struct Saved {
  Tensor logits, targets, log_sum_exp, scale;
};

class CrossEntropyNode : public Node {
 public:
  CrossEntropyNode(const Saved& s, const Shape& shape, int64_t ignore_index)
      : Node("softmax_cross_entropy"),
        shape_(shape),
        ignore_index_(ignore_index),
        logits_(s.logits, "the logits of softmax_cross_entropy"),
        targets_(s.targets, "the targets of softmax_cross_entropy"),
        log_sum_exp_(s.log_sum_exp, "the log-sum-exp of softmax_cross_entropy"),
        scale_(s.scale, "the scale of softmax_cross_entropy") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor logits = logits_.Unpack();
    if (!GraphIsRetained()) logits_.Reset();
    // Logits that nothing else can see any more become their gradient: they are by far the largest
    // tensor of a language model. Always handed over, never opened, so that the bits do not depend
    // on what else holds them.
    const bool last = logits.storage().unique();
    const Tensor dlogits = last ? logits : Tensor::EmptyLike(logits);
    if (last) logits.storage().BumpVersion();
    cross_entropy_backward(CurrentStream(logits.device()), {.logits = logits,
                                                            .targets = targets_.Unpack(),
                                                            .log_sum_exp = log_sum_exp_.Unpack(),
                                                            .ignore_index = ignore_index_,
                                                            .upstream = grads[0].View({-1}),
                                                            .scale = scale_.Unpack(),
                                                            .dlogits = dlogits});
    sinks[0].Put(dlogits.View(shape_));
  }
  void Release() override {
    for (SavedTensor* t : {&logits_, &targets_, &log_sum_exp_, &scale_}) t->Reset();
  }

 private:
  Shape shape_;  // of the logits as they were given
  int64_t ignore_index_;
  SavedTensor logits_, targets_, log_sum_exp_, scale_;
};

void Check(const Tensor& logits, const Tensor& targets) {
  LS_CHECK(logits.defined() && IsFloating(logits.dtype()) && logits.ndim() >= 1,
           "softmax_cross_entropy: logits must be a floating tensor [..., V], got ",
           logits.Describe());
  LS_CHECK(targets.defined() && (targets.dtype() == DType::kI32 || targets.dtype() == DType::kI64),
           "softmax_cross_entropy: targets must be i32 or i64, got ", targets.Describe());
  Shape rows;
  for (int i = 0; i + 1 < logits.ndim(); ++i) rows.push_back(logits.dim(i));
  LS_CHECK(targets.shape() == rows && targets.device() == logits.device(),
           "softmax_cross_entropy: targets must have the shape of the logits without the last "
           "dimension, ",
           rows, " on ", logits.device(), ", got ", targets.Describe());
  LS_CHECK(logits.dim(-1) > 0,
           "softmax_cross_entropy: the logits have no classes: ", logits.Describe());
}

}  // namespace

Tensor SoftmaxCrossEntropy(const Tensor& logits, const Tensor& targets, Reduction reduction,
                           int64_t ignore_index) {
  Check(logits, targets);
  const Device device = logits.device();
  const Stream stream = CurrentStream(device);
  const DType wide = AccumulationDType(logits.dtype());
  const int64_t rows = targets.numel();
  Saved s;
  s.logits = logits.Detach().Contiguous().View({rows, logits.dim(-1)});
  s.targets = targets.Detach().Contiguous().View({rows});
  s.log_sum_exp = Tensor::Empty({rows}, wide, device);
  const Tensor losses = Tensor::Empty({rows}, wide, device);
  cross_entropy_forward(stream, {.logits = s.logits,
                                 .targets = s.targets,
                                 .ignore_index = ignore_index,
                                 .losses = losses,
                                 .log_sum_exp = s.log_sum_exp});
  Tensor result;
  if (reduction == Reduction::kNone) {
    s.scale = Tensor::Full({1}, 1, wide, device);
    result = losses.View(targets.shape());
  } else {
    s.scale = Tensor::Empty({1}, wide, device);
    result = Tensor::Empty({}, wide, device);
    cross_entropy_reduce(stream, {.losses = losses,
                                  .targets = s.targets,
                                  .ignore_index = ignore_index,
                                  .mean = reduction == Reduction::kMean,
                                  .total = result,
                                  .scale = s.scale});
  }
  if (NeedsGrad({&logits})) {
    Record(std::make_shared<CrossEntropyNode>(s, logits.shape(), ignore_index), {&logits},
           {&result});
  }
  return result;
}

}  // namespace lockstep::ops
