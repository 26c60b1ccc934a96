#include "kernels/avg_pool2d/avg_pool2d.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

void CheckImages(const char* op, const Tensor& x) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() == 4, op,
           ": x must be a floating [N, C, H, W], got ", x.Describe());
  LS_CHECK(x.dim(2) > 0 && x.dim(3) > 0, op, ": images must have pixels, got ", x.Describe());
}

AveragedAxis Axis(const char* what, int64_t in, int64_t kernel, int64_t stride, int64_t padding,
                  const AvgPool2dOptions& o) {
  LS_CHECK(padding >= 0 && padding <= kernel / 2,
           "avg_pool2d: padding must be at most half of the kernel for the ", what, ", got ",
           padding, " for a kernel of ", kernel);
  return {.window = MakeWindowAxis("avg_pool2d", what, in, kernel, stride == 0 ? kernel : stride,
                                   padding, /*dilation=*/1, o.ceil_mode),
          .adaptive = false,
          .count_padding = o.count_include_pad};
}

AveragedAxis Grid(int64_t in, int64_t cells) {
  AveragedAxis axis;
  axis.window.in = in;
  axis.window.out = cells;
  axis.adaptive = true;
  return axis;
}

Tensor Pool(const Tensor& x, const AveragedAxis& rows, const AveragedAxis& columns) {
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Tensor::Empty({x.dim(0), x.dim(1), rows.window.out, columns.window.out}, x.dtype(),
                           x.device());
  avg_pool2d_forward(CurrentStream(x.device()), rows, columns, input, y);
  RecordOp("avg_pool2d", {&x}, {&y}, {}, [rows, columns](const SavedTensors&, Gradients& grads) {
    const auto [dx, accumulate] = grads.Open(0);
    avg_pool2d_backward(CurrentStream(dx.device()), rows, columns, grads[0], dx, accumulate);
  });
  return y;
}

}  // namespace

Tensor AvgPool2d(const Tensor& x, const AvgPool2dOptions& o) {
  CheckImages("avg_pool2d", x);
  return Pool(x, Axis("rows", x.dim(2), o.kernel.h, o.stride.h, o.padding.h, o),
              Axis("columns", x.dim(3), o.kernel.w, o.stride.w, o.padding.w, o));
}

Tensor AdaptiveAvgPool2d(const Tensor& x, Size2 out) {
  CheckImages("adaptive_avg_pool2d", x);
  LS_CHECK(out.h >= 1 && out.w >= 1,
           "adaptive_avg_pool2d: there must be at least 1 x 1 cells, got ", out);
  return Pool(x, Grid(x.dim(2), out.h), Grid(x.dim(3), out.w));
}

}  // namespace lockstep::ops
