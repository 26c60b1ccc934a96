// The largest element under a sliding window.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"
#include "kernels/conv2d/window2d.h"

namespace lockstep {

struct MaxPool2dOptions {
  Size2 kernel = 2;
  Size2 stride = 0;  // 0: the kernel
  Size2 padding = 0, dilation = 1;
  bool ceil_mode = false;  // round the number of windows up
};

namespace ops {

// torch.nn.functional.max_pool2d: x [N, C, H, W], floating -> y [N, C, H', W'], with
// H' = floor((H + 2 padding - dilation (kernel - 1) - 1) / stride) + 1, or, with ceil_mode, the
// quotient rounded up, without windows that begin in the padding at the end. Padding never wins; a
// NaN does. The gradient goes to the first of equal maxima in row-major order. Saves their
// positions. Throws ArgumentError for arguments that do not fit, and if a window holds nothing but
// padding.
Tensor MaxPool2d(const Tensor& x, const MaxPool2dOptions& options);

}  // namespace ops

// y [planes, rows.out, columns.out] of x [planes, rows.in, columns.in]; index, i32 like y: where in
// its plane the maximum is, undefined if not needed.
inline constinit Slot<void(const WindowAxis& rows, const WindowAxis& columns, const Tensor& x,
                           const Tensor& y, const Tensor& index)>
    max_pool2d_forward{"max_pool2d_forward"};
// dx = dy at the indices and 0 elsewhere, or dx += that. Several windows may share an element.
inline constinit Slot<void(const WindowAxis& rows, const WindowAxis& columns, const Tensor& dy,
                           const Tensor& index, const Tensor& dx, bool accumulate)>
    max_pool2d_backward{"max_pool2d_backward"};

}  // namespace lockstep
