// Running sums.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y[..., i, ...] = x[..., 0, ...] + ... + x[..., i, ...] along dimension `dim` (negative counts
// from the end) of an x of any dtype and strides. Sums are in f32 or wider, in an order that
// depends only on the shape, and each is rounded once. From a NaN on, all are NaN. For integers and
// bools the sums are exact, i64, and have no gradient. Saves nothing: the gradient is the running
// sum of dy from the end.
Tensor CumSum(const Tensor& x, int dim);

}  // namespace ops

// y[o, r, i] = the sum of x[o, s, i] over s <= r, or over s >= r if `reverse`; or y += that. x, y:
// [O, R, I], contiguous, both i64 or of the same floating dtype; not the same tensor.
inline constinit Slot<void(const Tensor& x, bool reverse, const Tensor& y, bool accumulate)>
    cum_sum{"cum_sum"};

}  // namespace lockstep
