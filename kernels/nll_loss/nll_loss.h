// The negative log-likelihood of classes.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"
#include "kernels/reduction.h"

namespace lockstep {

namespace ops {

// loss_i = -log_probs_i,target_i; 0 where target_i == ignore_index. log_probs [..., V], floating,
// as ops::LogSoftmax gives them; targets [...], i32 or i64. The result is f64 for f64, else f32: of
// the shape of targets for kNone, else a scalar, summed in f64. Saves the targets. A
// target outside [0, V) that is not ignore_index throws ArgumentError on the CPU; on a GPU, which
// cannot report to the host, its loss is NaN. Data made for PyTorch often marks rows to be ignored
// by -100: pass that as ignore_index. SoftmaxCrossEntropy makes both of logits, in one pass.
Tensor NllLoss(const Tensor& log_probs, const Tensor& targets,
               Reduction reduction = Reduction::kMean, int64_t ignore_index = -1);

}  // namespace ops

// log_probs [N, V]; targets [N]; losses [N], f64 for f64, else f32: written.
inline constinit Slot<void(const Tensor& log_probs, const Tensor& targets, int64_t ignore_index,
                           const Tensor& losses)>
    nll_loss_forward{"nll_loss_forward"};
// dlog_probs[i, target_i] -= upstream_i * scale[0], but in ignored rows. upstream: [N] or one
// element; upstream and scale of the losses' dtype.
inline constinit Slot<void(const Tensor& targets, int64_t ignore_index, const Tensor& upstream,
                           const Tensor& scale, const Tensor& dlog_probs)>
    nll_loss_backward{"nll_loss_backward"};

}  // namespace lockstep
