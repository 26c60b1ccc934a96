// The mean under a sliding window, or under the cells of a grid.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"
#include "kernels/conv2d/window2d.h"

namespace lockstep {

struct AvgPool2dOptions {
  Size2 kernel = 2;
  Size2 stride = 0;  // 0: the kernel
  Size2 padding = 0;
  bool ceil_mode = false;         // round the number of windows up
  bool count_include_pad = true;  // divide by the window's size, zeros of the padding included
};

namespace ops {

// torch.nn.functional.avg_pool2d: x [N, C, H, W], floating -> y [N, C, H', W'], with
// H' = floor((H + 2 padding - kernel) / stride) + 1, or, with ceil_mode, the quotient rounded up,
// without windows that begin in the padding at the end. Where ceil_mode lets a window reach beyond
// the padding, what lies there does not count. Sums are in f32 or wider and rounded once. Saves
// nothing. Throws ArgumentError for arguments that do not fit.
Tensor AvgPool2d(const Tensor& x, const AvgPool2dOptions& options);

// torch.nn.functional.adaptive_avg_pool2d: the image is cut into `out` cells; cell p covers the
// rows floor(p H / H') to ceil((p + 1) H / H'), columns likewise. out = 1: the mean of each plane.
Tensor AdaptiveAvgPool2d(const Tensor& x, Size2 out);

}  // namespace ops

// One dimension of the windows of a mean.
struct AveragedAxis {
  WindowAxis window;  // for an adaptive pool only in and out count
  bool adaptive = false;
  bool count_padding = true;

  // The inputs [first, last) of output o, and what the sum is divided by.
  struct Range {
    int64_t first, last, divisor;
  };
  LS_HOST_DEVICE Range At(int64_t o) const {
    const int64_t in = window.in;
    if (adaptive) {
      const int64_t first = o * in / window.out;
      const int64_t last = DivideUp((o + 1) * in, window.out);
      return {first, last, last - first};
    }
    const int64_t begin = window.Begin(o);
    const int64_t reach = begin + window.kernel, room = in + window.padding;
    const int64_t end = reach < room ? reach : room;
    const int64_t first = begin < 0 ? 0 : begin, last = end < in ? end : in;
    return {first, last, count_padding ? end - begin : last - first};
  }
};

// y [planes, rows.out, columns.out] of x [planes, rows.in, columns.in].
inline constinit Slot<void(const AveragedAxis& rows, const AveragedAxis& columns, const Tensor& x,
                           const Tensor& y)>
    avg_pool2d_forward{"avg_pool2d_forward"};
// dx = each window's dy divided among its elements, or dx += that.
inline constinit Slot<void(const AveragedAxis& rows, const AveragedAxis& columns, const Tensor& dy,
                           const Tensor& dx, bool accumulate)>
    avg_pool2d_backward{"avg_pool2d_backward"};

}  // namespace lockstep
