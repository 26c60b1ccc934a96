#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/max_pool2d/max_pool2d.h"

namespace lockstep::cuda {
namespace {

// The first of the largest in row-major order; a NaN wins, the first of them.
// Grid: one thread per element of y [planes, H', W']. No shared memory.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    MaxPoolForwardKernel(WindowAxis rows, WindowAxis columns, const T* x, int64_t n, T* y,
                         int* index) {
  const int64_t at = GlobalThread();
  if (at >= n) return;
  const int64_t q = at % columns.out, p = at / columns.out % rows.out;
  const T* plane = x + at / columns.out / rows.out * rows.in * columns.in;
  int64_t best = -1;
  float most = 0;
  for (int64_t i = 0; i < rows.kernel; ++i) {
    const int64_t row = rows.Begin(p) + i * rows.dilation;
    if (row < 0 || row >= rows.in) continue;
    for (int64_t j = 0; j < columns.kernel; ++j) {
      const int64_t column = columns.Begin(q) + j * columns.dilation;
      if (column < 0 || column >= columns.in || most != most) continue;
      const float v = ToFloat(plane[row * columns.in + column]);
      if (best < 0 || v > most || v != v) {
        best = row * columns.in + column;
        most = v;
      }
    }
  }
  y[at] = plane[best];
  if (index != nullptr) index[at] = static_cast<int>(best);
}

// dx = the sum of dy over the windows whose maximum it is, or += that.
// Grid: one thread per element of dx [planes, H, W]. No shared memory. Deterministic: one thread
// adds up an element, in f32, over the taps in order; rounded once.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    MaxPoolBackwardKernel(WindowAxis rows, WindowAxis columns, const T* dy, const int* index,
                          int64_t n, T* dx, bool accumulate) {
  const int64_t at = GlobalThread();
  if (at >= n) return;
  const int64_t column = at % columns.in, row = at / columns.in % rows.in;
  const int64_t plane = at / columns.in / rows.in * rows.out * columns.out;
  const int mine = static_cast<int>(row * columns.in + column);
  float sum = 0;
  for (int64_t i = 0; i < rows.kernel; ++i) {
    const int64_t p = rows.OutputWithTap(row, i);
    if (p < 0) continue;
    for (int64_t j = 0; j < columns.kernel; ++j) {
      const int64_t q = columns.OutputWithTap(column, j);
      if (q < 0) continue;
      const int64_t window = plane + p * columns.out + q;
      if (index[window] == mine) sum += ToFloat(dy[window]);
    }
  }
  dx[at] = Convert<T>(accumulate ? ToFloat(dx[at]) + sum : sum);
}

void MaxPool2dForwardCuda(Stream stream, const WindowAxis& rows, const WindowAxis& columns,
                          const Tensor& x, const Tensor& y, const Tensor& index) {
  DispatchFloat("max_pool2d", x.dtype(), [&]<class T>(TypeTag<T>) {
    LaunchThreads({"max_pool2d_forward", x}, MaxPoolForwardKernel<T>, y.numel(), stream, rows,
                  columns, Data<T>(x), y.numel(), Data<T>(y), DataOrNull<int>(index));
  });
}

void MaxPool2dBackwardCuda(Stream stream, const WindowAxis& rows, const WindowAxis& columns,
                           const Tensor& dy, const Tensor& index, const Tensor& dx,
                           bool accumulate) {
  DispatchFloat("max_pool2d", dy.dtype(), [&]<class T>(TypeTag<T>) {
    LaunchThreads({"max_pool2d_backward", dy}, MaxPoolBackwardKernel<T>, dx.numel(), stream, rows,
                  columns, Data<T>(dy), Data<int>(index), dx.numel(), Data<T>(dx), accumulate);
  });
}

LS_REGISTER(max_pool2d_forward, DeviceType::kCuda, MaxPool2dForwardCuda);
LS_REGISTER(max_pool2d_backward, DeviceType::kCuda, MaxPool2dBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
