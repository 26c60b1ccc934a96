// The norm of all gradients together, and the factor that clips it (Pascanu et al., "On the
// difficulty of training recurrent neural networks", 2013).
#pragma once

#include <span>

#include "core/dispatcher.h"
#include "core/round_up.h"
#include "core/step_state.h"
#include "core/tensor.h"

namespace lockstep {

// Squares are summed in f64 over chunks of this many elements of each gradient, and the chunks'
// sums are added in their order. So the norm depends only on the gradients' values and order.
inline constexpr int64_t kGradNormChunk = 16384;

// The number of chunks of a gradient.
inline int64_t GradNormChunks(int64_t numel) { return DivideUp(numel, kGradNormChunk); }
inline int64_t GradNormChunks(const Tensor& grad) { return GradNormChunks(grad.numel()); }

namespace ops {

// Writes into the step's values, on their device: grad_norm, the L2 norm of all gradients together
// divided by loss_scale; clip_factor = min(1, max_norm / (grad_norm + 1e-6)), as torch's
// clip_grad_norm_, or 1 where max_norm = 0; and found_inf, if the norm is NaN or infinite (then
// clip_factor is 1) or above the values' norm_limit. The gradients stay as they are: updates
// multiply by clip_factor / loss_scale. grads: contiguous, floating, on the state's device. Throws
// ArgumentError for a negative or NaN max_norm. Reads nothing back to the host.
void GradNorm(std::span<const Tensor> grads, double max_norm, const StepState& state);

}  // namespace ops

// sums: f64[all chunks], in the order of the gradients.
inline constinit Slot<void(std::span<const Tensor> grads, const Tensor& sums)>
    grad_norm_square_sums{"grad_norm_square_sums"};
// From the sums of squares of all chunks to the three values.
inline constinit Slot<void(const Tensor& sums, double max_norm, StepValues* values)>
    grad_norm_finish{"grad_norm_finish"};

}  // namespace lockstep
