#include "kernels/max_pool2d/max_pool2d.h"

#include <limits>

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

void CheckWindowsSeeInput(const char* what, const WindowAxis& axis) {
  for (int64_t o = 0; o < axis.out; ++o) {
    bool seen = false;
    for (int64_t k = 0; k < axis.kernel && !seen; ++k) {
      seen = o >= axis.FirstWithTap(k) && o < axis.LastWithTap(k);
    }
    LS_CHECK(seen, "max_pool2d: window ", o, " of the ", what, " (kernel ", axis.kernel,
             ", stride ", axis.stride, ", padding ", axis.padding, ", dilation ", axis.dilation,
             ") holds nothing but padding: use less padding");
  }
}

WindowAxis Axis(const char* what, int64_t in, int64_t kernel, int64_t stride, int64_t padding,
                int64_t dilation, bool ceil_mode) {
  LS_CHECK(padding >= 0 && padding <= kernel / 2,
           "max_pool2d: padding must be at most half of the kernel for the ", what, ", got ",
           padding, " for a kernel of ", kernel);
  const WindowAxis axis = MakeWindowAxis(
      "max_pool2d", what, in, kernel, stride == 0 ? kernel : stride, padding, dilation, ceil_mode);
  if (dilation > 1) CheckWindowsSeeInput(what, axis);
  return axis;
}

}  // namespace

Tensor MaxPool2d(const Tensor& x, const MaxPool2dOptions& o) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() == 4,
           "max_pool2d: x must be a floating [N, C, H, W], got ", x.Describe());
  const int64_t height = x.dim(2), width = x.dim(3);
  LS_CHECK(height > 0 && width > 0 && height <= std::numeric_limits<int32_t>::max() / width,
           "max_pool2d: images must have 1 to 2^31 - 1 pixels, got ", height, " x ", width);
  const WindowAxis rows =
      Axis("rows", height, o.kernel.h, o.stride.h, o.padding.h, o.dilation.h, o.ceil_mode);
  const WindowAxis columns =
      Axis("columns", width, o.kernel.w, o.stride.w, o.padding.w, o.dilation.w, o.ceil_mode);
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Tensor::Empty({x.dim(0), x.dim(1), rows.out, columns.out}, x.dtype(), x.device());
  const bool record = NeedsGrad({&x});
  const Tensor index = record ? Tensor::Empty(y.shape(), DType::kI32, x.device()) : Tensor();
  max_pool2d_forward(CurrentStream(x.device()), rows, columns, input, y, index);
  RecordOp("max_pool2d", {&x}, {&y}, {{index, "the positions of max_pool2d's maxima"}},
           [rows, columns](const SavedTensors& saved, Gradients& grads) {
             const Tensor index = saved[0];
             const auto [dx, accumulate] = grads.Open(0);
             max_pool2d_backward(CurrentStream(dx.device()), rows, columns, grads[0], index, dx,
                                 accumulate);
           });
  return y;
}

}  // namespace lockstep::ops
