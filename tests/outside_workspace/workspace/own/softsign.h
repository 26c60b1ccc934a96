// An op of another project: softsign, Glorot and Bengio (2010).
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace own {

// y = x / (1 + |x|), elementwise. x: any shape and floating dtype; bf16 and f16 compute in f32.
// Saves x.
lockstep::Tensor Softsign(const lockstep::Tensor& x);

inline constinit lockstep::Slot<void(const lockstep::Tensor& x, const lockstep::Tensor& y)>
    softsign_forward{"softsign_forward"};
// dx = dy / (1 + |x|)^2, or dx += that.
inline constinit lockstep::Slot<void(const lockstep::Tensor& x, const lockstep::Tensor& dy,
                                     const lockstep::Tensor& dx, bool accumulate)>
    softsign_backward{"softsign_backward"};

}  // namespace own
