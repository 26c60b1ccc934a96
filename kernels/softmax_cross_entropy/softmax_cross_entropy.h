// The loss of a classifier or language model.
#pragma once

#include "core/dispatcher.h"
#include "core/philox.h"
#include "core/tensor.h"
#include "kernels/reduction.h"

namespace lockstep {

namespace ops {

// loss_i = log(sum_j exp(logits_ij)) - logits_i,target_i; 0 where target_i == ignore_index.
// logits [..., V], floating; targets [...], i32 or i64. The result is f64 for f64 logits, else f32:
// of the shape of targets for kNone, else a scalar. Sums are in f32 or wider, over rows in f64.
// Probabilities are never stored: saves logits, targets and the log-sum-exp of each row. Backward
// writes the gradient over the logits where no tensor but the saved one holds them and the graph is
// not retained: to benefit, do not keep the logits: SoftmaxCrossEntropy(model(ids), targets).
// A target outside [0, V) that is not ignore_index throws ArgumentError on the CPU; a GPU cannot
// report to the host: there the loss of its row, and so the sum or mean, is NaN. Data made for
// PyTorch often marks rows to be ignored by -100: pass that as ignore_index.
// With z_loss > 0 each loss that counts is larger by z_loss log(sum_j exp(logits_ij))^2, which
// keeps logits from drifting (Chowdhery et al., "PaLM", 2022, section 5, with 1e-4).
Tensor SoftmaxCrossEntropy(const Tensor& logits, const Tensor& targets,
                           Reduction reduction = Reduction::kMean, int64_t ignore_index = -1,
                           double z_loss = 0);

}  // namespace ops

// By how much a z-loss multiplies a row's softmax in the gradient of its logits.
template <class A>
LS_HOST_DEVICE A ZFactor(A z_loss, A log_sum_exp) {
  return z_loss > 0 ? 1 + 2 * z_loss * log_sum_exp : A(1);
}

// The low-level operations. N rows; "wide" is f64 for f64 logits, else f32.

// Which classes the logits are of: [first, first + V) of `of`; by default of all. A row whose
// target is another class has the loss 0 and, in backward, no hit; cross_entropy_join makes the
// loss.
struct ClassPart {
  int64_t first = 0, of = 0;

  int64_t Whole(int64_t here) const { return of == 0 ? here : of; }
};

struct CrossEntropyForwardArgs {
  Tensor logits;   // [N, V]
  Tensor targets;  // [N]
  int64_t ignore_index = -1;
  ClassPart part;
  Tensor losses;          // wide [N], written; f64 [N] if they are to be joined
  Tensor log_sum_exp;     // the same
  int64_t first_row = 0;  // the number of the first row in errors
  // Where it is defined, of all classes: what cross_entropy_backward makes of an upstream gradient
  // and a scale of 1, to the bit, while the row is still in a cache. May be the logits.
  Tensor dlogits{};
  double z_loss = 0;  // only of dlogits: cross_entropy_add_z makes the losses
};
inline constinit Slot<void(const CrossEntropyForwardArgs&)> cross_entropy_forward{
    "cross_entropy_forward"};

// Joins what forward has made of two neighbouring parts of the classes, [begin, middle) and
// [middle, end): log_sum_exp becomes that of both, and so do the losses of the rows whose target is
// in one of them. All f64 [N], so that however many parts are joined, the result is rounded once.
struct CrossEntropyJoinArgs {
  Tensor losses, log_sum_exp;              // of the first part; written
  Tensor other_losses, other_log_sum_exp;  // of the second
  Tensor targets;                          // [N]
  int64_t ignore_index = -1;
  int64_t begin = 0, middle = 0, end = 0;
};
inline constinit Slot<void(const CrossEntropyJoinArgs&)> cross_entropy_join{"cross_entropy_join"};

// losses_i += z_loss log_sum_exp_i^2, but for ignored rows.
struct CrossEntropyAddZArgs {
  Tensor losses, log_sum_exp;  // wide [N], the latter over all classes
  Tensor targets;
  int64_t ignore_index = -1;
  double z_loss = 0;
};
inline constinit Slot<void(const CrossEntropyAddZArgs&)> cross_entropy_add_z{"cross_entropy_add_z"};
// The same, where z_loss > 0.
void AddZLoss(Stream stream, const CrossEntropyAddZArgs& args);

// scale[0] = 1 or, for kMean, 1 / number of targets that count (0 if there is none);
// total[0] = sum of the losses * scale[0], added in a fixed order. Both wide.
struct CrossEntropyReduceArgs {
  Tensor losses;
  Tensor targets;
  int64_t ignore_index = -1;
  bool mean = false;
  Tensor total;
  Tensor scale;
};
inline constinit Slot<void(const CrossEntropyReduceArgs&)> cross_entropy_reduce{
    "cross_entropy_reduce"};

// What a call returns for the losses of its rows: a scalar, or for kNone the losses; and the scale
// of their gradients, wide [1].
struct ReducedLoss {
  Tensor loss, scale;
};
ReducedLoss ReduceLosses(const Tensor& losses, const Tensor& targets, Reduction reduction,
                         int64_t ignore_index);

// dlogits_ij = (k_i softmax_ij - [j == target_i]) * upstream * scale[0], where k_i is ZFactor; 0 in
// ignored rows.
struct CrossEntropyBackwardArgs {
  Tensor logits;
  Tensor targets;
  Tensor log_sum_exp;  // over all classes
  int64_t ignore_index = -1;
  ClassPart part;
  Tensor upstream;  // wide, [N] or one element, read on the device
  Tensor scale;     // wide, one element
  Tensor dlogits;   // [N, V] of the logits' dtype; may be the logits themselves
  double z_loss = 0;
};
inline constinit Slot<void(const CrossEntropyBackwardArgs&)> cross_entropy_backward{
    "cross_entropy_backward"};

}  // namespace lockstep
