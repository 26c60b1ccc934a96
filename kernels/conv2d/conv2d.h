// Two-dimensional convolution, LeCun et al., "Gradient-based learning applied to document
// recognition" (1998).
#pragma once

#include "core/autograd/node.h"
#include "core/dispatcher.h"
#include "core/tensor.h"
#include "kernels/conv2d/window2d.h"

namespace lockstep {

struct Conv2dOptions {
  Size2 stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
};

namespace ops {

// torch.nn.functional.conv2d: the cross-correlation of images with filters, over zeros outside.
//   y[n, o, p, q] = bias[o] + sum_{c, i, j} weight[o, c, i, j]
//                   * x[n, g C/groups + c, p sh - ph + i dh, q sw - pw + j dw],  o in group g
// x [N, C, H, W]; weight [O, C / groups, kh, kw]; bias [O] or undefined; all of the same floating
// dtype; y [N, O, H', W'], with H' = floor((H + 2 ph - dh (kh - 1) - 1) / sh) + 1, W' likewise.
// Sums are in f32 or wider and rounded once. Saves x and weight. The weight's gradient is summed
// over blocks of images that depend only on the shape; the gradients of weight and bias may have
// another dtype than x. Throws ArgumentError for arguments that do not fit.
Tensor Conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dOptions& options = {});

}  // namespace ops

// The sizes of a convolution. An image of a group is `in` [channels, rows.in, columns.in], seen by
// `filters` filters.
struct Conv2dShape {
  int64_t images = 0, groups = 1;
  int64_t channels = 0;  // per group
  int64_t filters = 0;   // per group
  WindowAxis rows, columns;

  LS_HOST_DEVICE int64_t in_pixels() const { return rows.in * columns.in; }
  LS_HOST_DEVICE int64_t out_pixels() const { return rows.out * columns.out; }
  // The number of weights in one filter.
  LS_HOST_DEVICE int64_t taps() const { return channels * rows.kernel * columns.kernel; }
};

// x [N, C, H, W], weight [O, C / groups, kh, kw], bias [O] or undefined, y [N, O, H', W']
// (written).
inline constinit Slot<void(const Conv2dShape& shape, const Tensor& x, const Tensor& weight,
                           const Tensor& bias, const Tensor& y)>
    conv2d_forward{"conv2d_forward"};
// dx = the transposed convolution of dy, or dx += that.
inline constinit Slot<void(const Conv2dShape& shape, const Tensor& dy, const Tensor& weight,
                           const Tensor& dx, bool accumulate)>
    conv2d_backward_input{"conv2d_backward_input"};
// dweight = the correlation of x and dy, dbias = the sums of dy's planes, or += these. One of the
// two may be undefined; any floating dtype.
inline constinit Slot<void(const Conv2dShape& shape, const Tensor& x, const Tensor& dy,
                           const GradTarget& dweight, const GradTarget& dbias)>
    conv2d_backward_weight{"conv2d_backward_weight"};

}  // namespace lockstep
