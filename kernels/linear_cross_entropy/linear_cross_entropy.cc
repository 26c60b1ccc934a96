#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

#include <algorithm>

#include "core/autograd/engine.h"
#include "core/autograd/node.h"
#include "core/round_up.h"
#include "kernels/checks.h"
#include "kernels/linear/linear.h"
#include "kernels/unary/unary.h"

namespace lockstep::ops {
namespace {

// Saved are dx [N, C] and dweight, the gradients of the sum of the losses, and the scale.
void Backward(SavedTensors& saved, Gradients& grads) {
  LinearCrossEntropyBackwardArgs args{.upstream = grads[0], .scale = saved[2]};
  const Stream stream = CurrentStream(args.scale.device());
  if (grads.needs(0)) {
    args.grad = saved.Take(0);
    // In place where nothing else holds it. Always handed over, never opened, so that the bits do
    // not depend on that.
    const bool last = args.grad.storage().unique();
    if (last) args.grad.storage().BumpVersion();
    args.y = last ? args.grad : Tensor::EmptyLike(args.grad);
    linear_cross_entropy_backward(stream, args);
    grads.Put(0, args.y.View(grads.spec(0).shape));
  }
  if (grads.needs(1)) {
    const auto [dweight, accumulate] = grads.OpenAnyDType(1);
    args.grad = saved[1];
    args.y = dweight;
    args.accumulate = accumulate;
    linear_cross_entropy_backward(stream, args);
  }
}

// What a chunk of rows reads and writes.
struct Rows {
  Tensor x, targets, losses, dx;  // dx may be undefined

  Rows Slice(int64_t begin, int64_t end) const {
    return {.x = x.Slice(0, begin, end),
            .targets = targets.Slice(0, begin, end),
            .losses = losses.Slice(0, begin, end),
            .dx = dx.defined() ? dx.Slice(0, begin, end) : dx};
  }
};

// Fills losses, dx and, if it is defined, dweight.
void RunChunks(const Rows& all, const Tensor& weight, const Tensor& dweight, int64_t chunk_rows,
               int64_t ignore_index, double softcap, double z_loss) {
  const Device device = all.x.device();
  const Stream stream = CurrentStream(device);
  const int64_t rows = all.x.dim(0), chunks = DivideUp(rows, chunk_rows);
  const int64_t most = DivideUp(rows, chunks);
  const Tensor logits = Tensor::Empty({most, weight.dim(0)}, all.x.dtype(), device);
  const Tensor log_sum_exp = Tensor::Empty({most}, all.losses.dtype(), device);
  const bool record = all.dx.defined() || dweight.defined();
  for (int64_t begin = 0; begin < rows; begin += most) {
    const int64_t end = std::min(rows, begin + most);
    const Rows chunk = all.Slice(begin, end);
    const Tensor raw = logits.Slice(0, 0, end - begin), lse = log_sum_exp.Slice(0, 0, end - begin);
    linear_forward(stream, {.x = chunk.x, .weight = weight, .y = raw});
    const Tensor y = SoftcapForward(stream, raw, softcap);
    cross_entropy_forward(stream, {.logits = y,
                                   .targets = chunk.targets,
                                   .ignore_index = ignore_index,
                                   .losses = chunk.losses,
                                   .log_sum_exp = lse,
                                   .first_row = begin,
                                   .dlogits = record ? y : Tensor(),
                                   .z_loss = z_loss});
    AddZLoss(stream, {chunk.losses, lse, chunk.targets, ignore_index, z_loss});
    if (!record) continue;
    SoftcapBackward(stream, raw, softcap, y);
    linear_backward(stream, {.x = chunk.x,
                             .weight = weight,
                             .dy = y,
                             .dx = {chunk.dx},
                             .dweight = {dweight, begin > 0}});
  }
}

void Check(const Tensor& x, const Tensor& weight, const Tensor& targets, Reduction reduction,
           int64_t chunk_rows, double softcap, double z_loss) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() >= 1,
           "linear_cross_entropy: x must be a floating tensor [..., C], got ", x.Describe());
  LS_CHECK(weight.defined() && weight.ndim() == 2 && weight.dim(1) == x.dim(-1) &&
               weight.dim(0) > 0 && weight.dtype() == x.dtype() && weight.device() == x.device(),
           "linear_cross_entropy: weight must be ", x.dtype(), "[V, ", x.dim(-1), "] on ",
           x.device(), " with V > 0 for x ", x.Describe(), ", got ", weight.Describe());
  CheckTargets("linear_cross_entropy", targets, "x", x);
  LS_CHECK(reduction != Reduction::kNone,
           "linear_cross_entropy: the losses must be added up: use kSum or kMean, or "
           "SoftmaxCrossEntropy of Linear");
  LS_CHECK(chunk_rows >= 0,
           "linear_cross_entropy: chunk_rows must be at least 0 (0: no limit), got ", chunk_rows);
  LS_CHECK(softcap >= 0, "linear_cross_entropy: softcap must be at least 0 (0: none), got ",
           softcap);
  LS_CHECK(z_loss >= 0, "linear_cross_entropy: z_loss must be at least 0 (0: none), got ", z_loss);
}

}  // namespace

int64_t LossChunk(int64_t classes, int64_t width, int64_t rows) {
  constexpr int64_t kLeast = 4096, kMost = 16384;
  constexpr double kLayer = 20;  // numbers per row and channel
  const double most = kLayer * static_cast<double>(rows) * static_cast<double>(width) /
                      static_cast<double>(classes);
  int64_t chunk = kLeast;
  while (chunk < kMost && static_cast<double>(2 * chunk) <= most) chunk *= 2;
  return chunk;
}

Tensor CappedLogits(const Tensor& x, const Tensor& weight, double softcap) {
  const Tensor logits = Linear(x, weight);
  return softcap > 0 ? Softcap(logits, softcap) : logits;
}

Tensor LinearCrossEntropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                          Reduction reduction, int64_t chunk_rows, int64_t ignore_index,
                          double softcap, double z_loss) {
  Check(x, weight, targets, reduction, chunk_rows, softcap, z_loss);
  const int64_t rows = targets.numel();
  if (chunk_rows == 0 || rows <= chunk_rows) {
    return SoftmaxCrossEntropy(CappedLogits(x, weight, softcap), targets, reduction, ignore_index,
                               z_loss);
  }
  const Device device = x.device();
  const DType wide = AccumulationDType(x.dtype());
  const bool record = NeedsGrad({&x, &weight});
  const Tensor contiguous_weight = weight.Detach().Contiguous();
  const Rows all{.x = x.Detach().Contiguous().View({rows, x.dim(-1)}),
                 .targets = targets.Detach().Contiguous().View({rows}),
                 .losses = Tensor::Empty({rows}, wide, device),
                 .dx = record && x.requires_grad()
                           ? Tensor::Empty({rows, x.dim(-1)}, x.dtype(), device)
                           : Tensor()};
  Tensor dweight;
  if (record && weight.requires_grad()) dweight = Tensor::Empty(weight.shape(), wide, device);
  RunChunks(all, contiguous_weight, dweight, chunk_rows, ignore_index, softcap, z_loss);
  auto [total, scale] = ReduceLosses(all.losses, all.targets, reduction, ignore_index);
  RecordGradients(x, weight, all.dx, dweight, scale, &total);
  return total;
}

void RecordGradients(const Tensor& x, const Tensor& weight, const Tensor& dx, const Tensor& dweight,
                     const Tensor& scale, Tensor* total) {
  RecordOp("linear_cross_entropy", {&x, &weight}, {total},
           {{dx, "the gradient of x of linear_cross_entropy"},
            {dweight, "the gradient of the weight of linear_cross_entropy"},
            {scale, "the scale of linear_cross_entropy"}},
           Backward);
}

}  // namespace lockstep::ops

namespace lockstep {

Tensor SoftcapForward(Stream stream, const Tensor& logits, double softcap) {
  if (softcap == 0) return logits;
  Tensor y = Tensor::EmptyLike(logits);
  unary_forward(stream, UnaryOp::kSoftcap, softcap, 0, logits, y);
  return y;
}

void SoftcapBackward(Stream stream, const Tensor& logits, double softcap, const Tensor& dy) {
  if (softcap == 0) return;
  unary_backward(stream, UnaryOp::kSoftcap, softcap, 0, logits, dy, dy, /*accumulate=*/false);
}

}  // namespace lockstep
