// Sums, means and maxima over dimensions.
#pragma once

#include <vector>

#include "core/slots.h"

namespace lockstep {

namespace ops {

// Over the dimensions `dims` (negative counts from the end; none given: all) of a floating x.
// `keepdim` leaves them in the shape with size 1. Sums run in f32 or wider, in trees whose shape
// depends only on the sizes, so the error grows with the logarithm of their length. Save nothing.
// The sum over no elements is 0; their mean and maximum are errors.
Tensor Sum(const Tensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
Tensor Mean(const Tensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
// NaN if any element is. The gradient goes to the first of equal maxima, in row-major order.
// Saves the positions.
Tensor Max(const Tensor& x, const std::vector<int>& dims = {}, bool keepdim = false);

}  // namespace ops

// y[o, i] = max_r x[o, r, i], and the first r where it is: index, i64[o, i]. R > 0.
inline constinit Slot<void(const Tensor& x, const Tensor& y, const Tensor& index)> reduce_max{
    "reduce_max"};
// dx[o, r, i] = dy[o, i] where r == index[o, i], else 0; or dx += that.
inline constinit Slot<void(const Tensor& dy, const Tensor& index, const Tensor& dx,
                           bool accumulate)>
    reduce_max_backward{"reduce_max_backward"};

}  // namespace lockstep
