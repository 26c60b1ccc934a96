// The operations that core needs itself; kernels/fill, copy, accumulate and reduce implement them.
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

// y[o, i] = scale * sum_r x[o, r, i], or y += that; contiguous, y of any floating dtype.
inline constinit Slot<void(const Tensor& x, double scale, const Tensor& y, bool accumulate)>
    reduce_sum_slot{"reduce_sum"};

}  // namespace lockstep
