// The operations that core needs itself; kernels/fill, copy, accumulate and reduce implement them.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

// Every element of `x` becomes `value`, converted to its dtype. Any strides.
inline constinit Slot<void(const Tensor& x, double value)> fill_slot{"fill"};

// `to` gets the elements of `from`: equal shapes, any strides and dtypes; between devices it runs
// as the backend of the one that is not the CPU.
inline constinit Slot<void(const Tensor& from, const Tensor& to)> copy_slot{"copy"};

// to += from, computed in the wider dtype of the two. Equal shapes, any strides, `to` written in
// place, every element by one thread.
inline constinit Slot<void(const Tensor& from, const Tensor& to)> accumulate_slot{"accumulate"};

// y[o, i] = scale * sum_r x[o, r, i], or y += that; contiguous, y of any floating dtype.
inline constinit Slot<void(const Tensor& x, double scale, const Tensor& y, bool accumulate)>
    reduce_sum_slot{"reduce_sum"};

}  // namespace lockstep
