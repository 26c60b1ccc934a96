// Dropout: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting"
// (JMLR 2014).
#pragma once

#include "core/dispatcher.h"
#include "core/step_state.h"
#include "core/tensor.h"
#include "kernels/dropout/dropout_mask.h"

namespace lockstep {

namespace ops {

// In a TrainingScope: y = x / (1 - p) where the mask keeps an element, which it does with
// probability 1 - p, else 0. Outside of one, or for p = 0: x itself. x: floating, any shape; its
// dimension 0 counts samples. 0 <= p < 1. `part`: x has only a part of each sample.
//
// The mask is a function of (seed, step, site, place), where the place is the element's in the
// tensor of the step's whole batch: sample first_sample + b of dimension 0. So it does not depend
// on rank, micro-batch, device or threads. `site` tells the dropouts of a model apart: a hash of
// the module's path. Saves those numbers, on the device, and draws the mask again in backward, when
// the state may have changed. Throws ArgumentError if the state is on another device.
Tensor Dropout(const Tensor& x, double p, uint64_t site, SamplePart part = {});

}  // namespace ops

// Key of a mask, as it is saved for backward: i64[3] = {seed, stream, first_sample}.
inline constexpr int64_t kDropoutKeySize = 3;

// x, y: contiguous, of `samples` samples. Writes y, and to `key` what the mask was drawn from.
inline constinit Slot<void(const Tensor& x, int64_t samples, SamplePart part, double p,
                           uint64_t site, const StepValues* values, const Tensor& y,
                           const Tensor& key)>
    dropout_forward{"dropout_forward"};
inline constinit Slot<void(const Tensor& dy, int64_t samples, SamplePart part, double p,
                           const Tensor& key, const Tensor& dx, bool accumulate)>
    dropout_backward{"dropout_backward"};

}  // namespace lockstep
