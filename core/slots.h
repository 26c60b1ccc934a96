// Slots of the operations that core itself needs; kernels/fill, kernels/copy and kernels/accumulate
// implement them.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

// Sets every element of `x` to `value`, converted to its dtype. Any strides.
inline constinit Slot<void(const Tensor& x, double value)> fill_slot{"fill"};

// Copies the elements of `from` to `to`: equal shapes, any strides and dtypes. Between devices, the
// backend of the device that is not the CPU runs it.
inline constinit Slot<void(const Tensor& from, const Tensor& to)> copy_slot{"copy"};

// to += from, in place, computed in the wider of the two dtypes. Equal shapes, any strides; each
// element is written by one thread.
inline constinit Slot<void(const Tensor& from, const Tensor& to)> accumulate_slot{"accumulate"};

}  // namespace lockstep
