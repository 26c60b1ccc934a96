// Softmax and its logarithm.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// Over dimension `dim` of a floating x with at least one (negative ones count from the end; without
// `dim` the last):
// y_i = e^(x_i - m) / sum_j e^(x_j - m) with m = max x, in f32 or wider; LogSoftmax gives
// ln y_i = x_i - m - ln(sum). An x of -infinity gives 0 (-infinity), a row of nothing else gives
// NaN. Each saves its result. Another dimension than the last is moved there and back: two copies.
Tensor Softmax(const Tensor& x);
Tensor Softmax(const Tensor& x, int dim);
Tensor LogSoftmax(const Tensor& x);
Tensor LogSoftmax(const Tensor& x, int dim);

}  // namespace ops

// x, y: [rows, C], contiguous, of the same dtype.
inline constinit Slot<void(bool logarithm, const Tensor& x, const Tensor& y)> softmax_forward{
    "softmax_forward"};
// dx = y (dy - sum(y dy)), with logarithm dx = dy - e^y sum(dy); or dx += that.
inline constinit Slot<void(bool logarithm, const Tensor& y, const Tensor& dy, const Tensor& dx,
                           bool accumulate)>
    softmax_backward{"softmax_backward"};

}  // namespace lockstep
