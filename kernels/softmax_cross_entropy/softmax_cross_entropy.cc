#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

#include "core/autograd/engine.h"
#include "core/autograd/node.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

void Backward(int64_t ignore_index, double z_loss, SavedTensors& saved, Gradients& grads) {
  const Tensor logits = saved.Take(0);
  // Logits that nothing else can see any more become their gradient: they are by far the largest
  // tensor of a language model. Always handed over, never opened, so that the bits do not depend
  // on what else holds them.
  const bool last = logits.storage().unique();
  const Tensor dlogits = last ? logits : Tensor::EmptyLike(logits);
  if (last) logits.storage().BumpVersion();
  cross_entropy_backward(CurrentStream(logits.device()), {.logits = logits,
                                                          .targets = saved[1],
                                                          .log_sum_exp = saved[2],
                                                          .ignore_index = ignore_index,
                                                          .upstream = grads[0].View({-1}),
                                                          .scale = saved[3],
                                                          .dlogits = dlogits,
                                                          .z_loss = z_loss});
  grads.Put(0, dlogits.View(grads.spec(0).shape));
}

void Check(const Tensor& logits, const Tensor& targets) {
  LS_CHECK(logits.defined() && IsFloating(logits.dtype()) && logits.ndim() >= 1,
           "softmax_cross_entropy: logits must be a floating tensor [..., V], got ",
           logits.Describe());
  CheckTargets("softmax_cross_entropy", targets, "the logits", logits);
  LS_CHECK(logits.dim(-1) > 0,
           "softmax_cross_entropy: the logits have no classes: ", logits.Describe());
}

}  // namespace

Tensor SoftmaxCrossEntropy(const Tensor& logits, const Tensor& targets, Reduction reduction,
                           int64_t ignore_index, double z_loss) {
  Check(logits, targets);
  LS_CHECK(z_loss >= 0, "softmax_cross_entropy: z_loss must be at least 0 (0: none), got ", z_loss);
  const Device device = logits.device();
  const Stream stream = CurrentStream(device);
  const DType wide = AccumulationDType(logits.dtype());
  const int64_t rows = targets.numel();
  const Tensor matrix = logits.Detach().Contiguous().View({rows, logits.dim(-1)});
  const Tensor classes = targets.Detach().Contiguous().View({rows});
  const Tensor log_sum_exp = Tensor::Empty({rows}, wide, device);
  const Tensor losses = Tensor::Empty({rows}, wide, device);
  cross_entropy_forward(stream, {.logits = matrix,
                                 .targets = classes,
                                 .ignore_index = ignore_index,
                                 .losses = losses,
                                 .log_sum_exp = log_sum_exp});
  AddZLoss(stream, {losses, log_sum_exp, classes, ignore_index, z_loss});
  auto [result, scale] = ReduceLosses(losses, classes, reduction, ignore_index);
  if (reduction == Reduction::kNone) result = losses.View(targets.shape());
  RecordOp("softmax_cross_entropy", {&logits}, {&result},
           {{matrix, "the logits of softmax_cross_entropy"},
            {classes, "the targets of softmax_cross_entropy"},
            {log_sum_exp, "the log-sum-exp of softmax_cross_entropy"},
            {scale, "the scale of softmax_cross_entropy"}},
           [ignore_index, z_loss](SavedTensors& saved, Gradients& grads) {
             Backward(ignore_index, z_loss, saved, grads);
           });
  return result;
}

}  // namespace lockstep::ops

namespace lockstep {

void AddZLoss(Stream stream, const CrossEntropyAddZArgs& args) {
  if (args.z_loss > 0) cross_entropy_add_z(std::move(stream), args);
}

ReducedLoss ReduceLosses(const Tensor& losses, const Tensor& targets, Reduction reduction,
                         int64_t ignore_index) {
  const DType wide = losses.dtype();
  const Device device = losses.device();
  if (reduction == Reduction::kNone) return {losses, Tensor::Full({1}, 1, wide, device)};
  const Tensor scale = Tensor::Empty({1}, wide, device), total = Tensor::Empty({}, wide, device);
  cross_entropy_reduce(CurrentStream(device), {.losses = losses,
                                               .targets = targets,
                                               .ignore_index = ignore_index,
                                               .mean = reduction == Reduction::kMean,
                                               .total = total,
                                               .scale = scale});
  return {total, scale};
}

}  // namespace lockstep
