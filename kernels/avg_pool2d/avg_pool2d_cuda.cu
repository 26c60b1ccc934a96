#include "kernels/avg_pool2d/avg_pool2d.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/types.cuh"

namespace lockstep::cuda {
namespace {

// Grid: one thread per element of y [planes, H', W']. No shared memory. Deterministic: one thread
// adds up a window, in f32 and row-major order.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    AvgPoolForwardKernel(AveragedAxis rows, AveragedAxis columns, const T* x, int64_t n, T* y) {
  const int64_t at = GlobalThread();
  if (at >= n) return;
  const int64_t width = columns.window.in, out = columns.window.out;
  const AveragedAxis::Range across = columns.At(at % out);
  const AveragedAxis::Range down = rows.At(at / out % rows.window.out);
  const T* plane = x + at / out / rows.window.out * rows.window.in * width;
  float sum = 0;
  for (int64_t i = down.first; i < down.last; ++i) {
    for (int64_t j = across.first; j < across.last; ++j) sum += ToFloat(plane[i * width + j]);
  }
  y[at] = Convert<T>(sum / static_cast<float>(down.divisor * across.divisor));
}

// The outputs [first, last) of an axis that may hold input i; At says which of them do.
struct Candidates {
  int64_t first, last;

  __device__ Candidates(const AveragedAxis& axis, int64_t i) {
    const WindowAxis& w = axis.window;
    if (axis.adaptive) {
      first = i * w.out / w.in;
      last = ((i + 1) * w.out + w.in - 1) / w.in;
    } else {
      const int64_t before = i + w.padding - w.kernel;  // the last input before the first window
      first = before < 0 ? 0 : before / w.stride + 1;
      last = (i + w.padding) / w.stride + 1;
    }
    last = Min(last, w.out);
  }
};

// dx = the shares of the windows that hold an element, or += that.
// Grid: one thread per element of dx [planes, H, W]. No shared memory. Deterministic: one thread
// adds up an element, in f32, over the windows in row-major order; rounded once.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    AvgPoolBackwardKernel(AveragedAxis rows, AveragedAxis columns, const T* dy, int64_t n, T* dx,
                          bool accumulate) {
  const int64_t at = GlobalThread();
  if (at >= n) return;
  const int64_t column = at % columns.window.in, row = at / columns.window.in % rows.window.in;
  const int64_t out = columns.window.out;
  const T* plane = dy + at / columns.window.in / rows.window.in * rows.window.out * out;
  const Candidates down(rows, row), across(columns, column);
  float sum = 0;
  for (int64_t p = down.first; p < down.last; ++p) {
    const AveragedAxis::Range r = rows.At(p);
    if (row < r.first || row >= r.last) continue;
    for (int64_t q = across.first; q < across.last; ++q) {
      const AveragedAxis::Range c = columns.At(q);
      if (column < c.first || column >= c.last) continue;
      sum += ToFloat(plane[p * out + q]) / static_cast<float>(r.divisor * c.divisor);
    }
  }
  dx[at] = Convert<T>(accumulate ? ToFloat(dx[at]) + sum : sum);
}

void AvgPool2dForwardCuda(Stream stream, const AveragedAxis& rows, const AveragedAxis& columns,
                          const Tensor& x, const Tensor& y) {
  DispatchFloat("avg_pool2d", x.dtype(), [&]<class T>(TypeTag<T>) {
    LaunchThreads({"avg_pool2d_forward", x}, AvgPoolForwardKernel<T>, y.numel(), stream, rows,
                  columns, Data<T>(x), y.numel(), Data<T>(y));
  });
}

void AvgPool2dBackwardCuda(Stream stream, const AveragedAxis& rows, const AveragedAxis& columns,
                           const Tensor& dy, const Tensor& dx, bool accumulate) {
  DispatchFloat("avg_pool2d", dy.dtype(), [&]<class T>(TypeTag<T>) {
    LaunchThreads({"avg_pool2d_backward", dy}, AvgPoolBackwardKernel<T>, dx.numel(), stream, rows,
                  columns, Data<T>(dy), dx.numel(), Data<T>(dx), accumulate);
  });
}

LS_REGISTER(avg_pool2d_forward, DeviceType::kCuda, AvgPool2dForwardCuda);
LS_REGISTER(avg_pool2d_backward, DeviceType::kCuda, AvgPool2dBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
