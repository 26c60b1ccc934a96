// The output head of a language model and its loss, without the logits of the whole batch.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

namespace lockstep {

namespace ops {

// SoftmaxCrossEntropy(Linear(x, weight), targets, reduction, ignore_index, z_loss), chunk by chunk:
// the logits [N, V] are in memory for at most `chunk_rows` of the N rows at once. There are as few
// chunks as that allows, of equal size except for the last. x [..., C], weight [V, C], both of the
// same floating dtype; targets [...], i32 or i64; the result is a scalar, f64 for f64 inputs, else
// f32. reduction is kSum or kMean: a gradient per row of kNone could not be applied to sums over
// rows.
//
// Gradients are computed in forward, while a chunk's logits exist, and those of the logits in the
// same pass as the loss: inputs that need none cost nothing, and nothing is multiplied twice. They
// are those of the sum, whose logits' gradients are within [-1, 1] and so suit 16-bit floats
// whatever the upstream gradient is; backward multiplies them by it, on the device. Saves them: [N,
// C] of the inputs' dtype, which is passed on, and [V, C] in f32 or wider, because the weight's
// gradient is added up over chunks. So chunks save memory where N is well above C. Writing to the
// inputs before backward changes nothing.
//
// The results are those of the ops one after the other up to rounding: the weight's gradient is a
// sum of the chunks' sums, so its bits depend on chunk_rows, and both gradients are scaled last.
// Where N <= chunk_rows, and for chunk_rows = 0 (no limit), it runs the ops one after the other.
// Bits do not depend on threads.
// With a softcap > 0 the logits become Softcap(logits, softcap) first; a second chunk of logits is
// in memory then.
// Throws ArgumentError for a target outside [0, V) that is not ignore_index (on the CPU).
Tensor LinearCrossEntropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                          Reduction reduction, int64_t chunk_rows, int64_t ignore_index = -1,
                          double softcap = 0, double z_loss = 0);

// The chunk_rows to train with where micro-batches have `rows` rows of `width` numbers. A chunk
// reads and writes the weight's gradient, which takes a GPU as long as the products of some 360
// rows (3.35 TB/s, 800 TFLOP/s): 8% of the time with 4096 rows, 2% with 16384. More than 4096 are
// taken only where the logits of a chunk are then no more than what a transformer's layer has in
// memory during its backward: 16 numbers per row and channel that it kept, and 4 of the gradient
// within its MLP (models/memory). So the peak of a run grows by at most a layer's share. Follows
// from nothing but the sizes, because bits depend on it.
int64_t LossChunk(int64_t classes, int64_t width, int64_t rows);

// Softcap(Linear(x, weight), softcap); 0: Linear(x, weight).
Tensor CappedLogits(const Tensor& x, const Tensor& weight, double softcap);

// For a loss `total` of x and weight whose gradients forward has computed: records that backward
// gives x `dx`, and the weight `dweight` (f32 or wider), times its upstream gradient and scale[0].
// Undefined ones are not needed. Keeps them as LinearCrossEntropy does.
void RecordGradients(const Tensor& x, const Tensor& weight, const Tensor& dx, const Tensor& dweight,
                     const Tensor& scale, Tensor* total);

}  // namespace ops

// For losses that are computed in chunks: Softcap(logits, softcap) in memory of its own; without a
// cap (0) the logits themselves. All of these are contiguous, and nothing is recorded.
Tensor SoftcapForward(Stream stream, const Tensor& logits, double softcap);
// Makes of dy, the gradient of what SoftcapForward gave, that of the logits, in place.
void SoftcapBackward(Stream stream, const Tensor& logits, double softcap, const Tensor& dy);

// y = grad * (upstream[0] * scale[0]), or y += that. Contiguous; y may be grad, or of another
// dtype. upstream and scale are f64 for f64 gradients, else f32, and read on the device.
struct LinearCrossEntropyBackwardArgs {
  Tensor grad, upstream, scale, y;
  bool accumulate = false;
};
inline constinit Slot<void(const LinearCrossEntropyBackwardArgs&)> linear_cross_entropy_backward{
    "linear_cross_entropy_backward"};

}  // namespace lockstep
