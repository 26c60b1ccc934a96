#include "core/cuda/launch.h"
#include "core/kernel_choices.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"

namespace lockstep::cuda {
namespace {

// Plain direct convolutions: correct everywhere, fast enough for small images. Sums are in f32.

// The input that tap k of output o sees, or -1.
__device__ inline int64_t InputAt(const WindowAxis& axis, int64_t o, int64_t k) {
  const int64_t i = axis.Begin(o) + k * axis.dilation;
  return i >= 0 && i < axis.in ? i : -1;
}

// Grid: one thread per element of y [N, O, H', W']. No shared memory. Deterministic: one thread
// adds up an element, over channels and taps in order.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    Conv2dForwardKernel(Conv2dShape s, const T* x, const T* weight, const T* bias, int64_t n,
                        T* y) {
  const int64_t at = GlobalThread();
  if (at >= n) return;
  const int64_t q = at % s.columns.out, p = at / s.columns.out % s.rows.out;
  const int64_t filters = s.groups * s.filters;
  const int64_t o = at / s.out_pixels() % filters, image = at / s.out_pixels() / filters;
  const T* planes = x + (image * s.groups + o / s.filters) * s.channels * s.in_pixels();
  const T* w = weight + o * s.taps();
  float sum = 0;
  for (int64_t c = 0; c < s.channels; ++c) {
    for (int64_t i = 0; i < s.rows.kernel; ++i) {
      const int64_t row = InputAt(s.rows, p, i);
      for (int64_t j = 0; j < s.columns.kernel; ++j, ++w) {
        const int64_t column = InputAt(s.columns, q, j);
        if (row < 0 || column < 0) continue;
        sum = fmaf(ToFloat(planes[c * s.in_pixels() + row * s.columns.in + column]), ToFloat(*w),
                   sum);
      }
    }
  }
  y[at] = Convert<T>(bias != nullptr ? sum + ToFloat(bias[o]) : sum);
}

// Grid: one thread per element of dx [N, C, H, W]. No shared memory. Deterministic: one thread adds
// up an element, over filters and taps in order.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    Conv2dInputGradientKernel(Conv2dShape s, const T* dy, const T* weight, int64_t n, T* dx,
                              bool accumulate) {
  const int64_t at = GlobalThread();
  if (at >= n) return;
  const int64_t column = at % s.columns.in, row = at / s.columns.in % s.rows.in;
  const int64_t c = at / s.in_pixels() % s.channels;
  const int64_t group = at / s.in_pixels() / s.channels % s.groups;
  const int64_t image = at / s.in_pixels() / s.channels / s.groups;
  const int64_t area = s.rows.kernel * s.columns.kernel;
  float sum = 0;
  for (int64_t f = 0; f < s.filters; ++f) {
    const int64_t o = group * s.filters + f;
    const T* plane = dy + (image * s.groups * s.filters + o) * s.out_pixels();
    const T* w = weight + (o * s.channels + c) * area;
    for (int64_t i = 0; i < s.rows.kernel; ++i) {
      const int64_t p = s.rows.OutputWithTap(row, i);
      for (int64_t j = 0; j < s.columns.kernel; ++j, ++w) {
        const int64_t q = s.columns.OutputWithTap(column, j);
        if (p < 0 || q < 0) continue;
        sum = fmaf(ToFloat(plane[p * s.columns.out + q]), ToFloat(*w), sum);
      }
    }
  }
  dx[at] = Convert<T>(accumulate ? ToFloat(dx[at]) + sum : sum);
}

// Grid: one block per element of dweight [O, C / groups, kh, kw]; its threads share the pixels of
// all images. Shared memory: one f32 per warp. Deterministic: the order follows from the shape.
template <int Threads, class T, class D>
__global__ void __launch_bounds__(Threads)
    Conv2dWeightGradientKernel(Conv2dShape s, const T* x, const T* dy, D* dweight,
                               bool accumulate) {
  __shared__ float scratch[Threads / kWarpSize];
  const int64_t at = blockIdx.x;
  const int64_t j = at % s.columns.kernel, i = at / s.columns.kernel % s.rows.kernel;
  const int64_t c = at / (s.columns.kernel * s.rows.kernel) % s.channels, o = at / s.taps();
  const int64_t filters = s.groups * s.filters, channel = o / s.filters * s.channels + c;
  float sum = 0;
  for (int64_t k = threadIdx.x; k < s.images * s.out_pixels(); k += Threads) {
    const int64_t image = k / s.out_pixels(), pixel = k % s.out_pixels();
    const int64_t row = InputAt(s.rows, pixel / s.columns.out, i);
    const int64_t column = InputAt(s.columns, pixel % s.columns.out, j);
    if (row < 0 || column < 0) continue;
    const T* plane = x + (image * s.groups * s.channels + channel) * s.in_pixels();
    sum = fmaf(ToFloat(plane[row * s.columns.in + column]),
               ToFloat(dy[(image * filters + o) * s.out_pixels() + pixel]), sum);
  }
  sum = BlockSum<Threads>(sum, scratch);
  if (threadIdx.x != 0) return;
  dweight[at] = Convert<D>(accumulate ? ToFloat(dweight[at]) + sum : sum);
}

// Grid: one block per filter; its threads share the pixels of all images. Shared memory and order
// as above.
template <int Threads, class T, class D>
__global__ void __launch_bounds__(Threads)
    Conv2dBiasGradientKernel(Conv2dShape s, const T* dy, D* dbias, bool accumulate) {
  __shared__ float scratch[Threads / kWarpSize];
  const int64_t o = blockIdx.x, filters = s.groups * s.filters;
  float sum = 0;
  for (int64_t k = threadIdx.x; k < s.images * s.out_pixels(); k += Threads) {
    const int64_t image = k / s.out_pixels(), pixel = k % s.out_pixels();
    sum += ToFloat(dy[(image * filters + o) * s.out_pixels() + pixel]);
  }
  sum = BlockSum<Threads>(sum, scratch);
  if (threadIdx.x != 0) return;
  dbias[o] = Convert<D>(accumulate ? ToFloat(dbias[o]) + sum : sum);
}

void Conv2dForwardCuda(Stream stream, const Conv2dShape& shape, const Tensor& x,
                       const Tensor& weight, const Tensor& bias, const Tensor& y) {
  DispatchFloat("conv2d", x.dtype(), [&]<class T>(TypeTag<T>) {
    LaunchThreads({"conv2d_forward", x, weight}, Conv2dForwardKernel<T>, y.numel(), stream, shape,
                  Data<T>(x), Data<T>(weight), DataOrNull<T>(bias), y.numel(), Data<T>(y));
  });
}

void Conv2dBackwardInputCuda(Stream stream, const Conv2dShape& shape, const Tensor& dy,
                             const Tensor& weight, const Tensor& dx, bool accumulate) {
  DispatchFloat("conv2d", dy.dtype(), [&]<class T>(TypeTag<T>) {
    LaunchThreads({"conv2d_backward_input", dy, weight}, Conv2dInputGradientKernel<T>, dx.numel(),
                  stream, shape, Data<T>(dy), Data<T>(weight), dx.numel(), Data<T>(dx), accumulate);
  });
}

void NoteWeightGradient(const Conv2dShape& s, DType dtype) {
  constexpr int64_t kLarge = 1 << 20;  // multiplications; others take no time
  if (s.groups * s.filters * s.taps() * s.images * s.out_pixels() < kLarge) return;
  constexpr const char* kOp = "conv2d_backward_weight";
  const int64_t problem[] = {s.images, s.groups,       s.filters,
                             s.taps(), s.out_pixels(), static_cast<int64_t>(dtype)};
  if (!IsNewProblem(kOp, problem)) return;
  NoteKernelChoice(
      kOp, problem,
      {.problem = StrCat(dtype, ", ", s.groups * s.filters, " filters of ", s.taps(), " weights, ",
                         s.images, " images of ", s.out_pixels(), " pixels"),
       .kernel = "a block per weight",
       .why_slow = "each weight of a filter reads all images again: there is no product on "
                   "tensor cores for it"});
}

void Conv2dBackwardWeightCuda(Stream stream, const Conv2dShape& shape, const Tensor& x,
                              const Tensor& dy, const GradTarget& dweight,
                              const GradTarget& dbias) {
  DispatchFloat("conv2d", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const auto run = [&](const GradTarget& target, const auto& launch) {
      if (!target.tensor.defined()) return;
      DispatchFloat("conv2d", target.tensor.dtype(), [&](auto to_tag) {
        // At least four pixels per thread.
        DispatchRowThreads(DivideUp(shape.images * shape.out_pixels(), 4),
                           [&](auto threads) { launch(to_tag, threads); });
      });
    };
    if (dweight.tensor.defined()) NoteWeightGradient(shape, dy.dtype());
    run(dweight, [&]<class D>(TypeTag<D>, auto threads) {
      constexpr int kThreads = decltype(threads)::value;
      Launch({"conv2d_backward_weight", x, dy}, Conv2dWeightGradientKernel<kThreads, T, D>,
             Blocks(dweight.tensor.numel(), 1), kThreads, 0, stream, shape, Data<T>(x), Data<T>(dy),
             Data<D>(dweight.tensor), dweight.accumulate);
    });
    run(dbias, [&]<class D>(TypeTag<D>, auto threads) {
      constexpr int kThreads = decltype(threads)::value;
      Launch({"conv2d_backward_bias", dy}, Conv2dBiasGradientKernel<kThreads, T, D>,
             Blocks(dbias.tensor.numel(), 1), kThreads, 0, stream, shape, Data<T>(dy),
             Data<D>(dbias.tensor), dbias.accumulate);
    });
  });
}

LS_REGISTER(conv2d_forward, DeviceType::kCuda, Conv2dForwardCuda);
LS_REGISTER(conv2d_backward_input, DeviceType::kCuda, Conv2dBackwardInputCuda);
LS_REGISTER(conv2d_backward_weight, DeviceType::kCuda, Conv2dBackwardWeightCuda);

}  // namespace
}  // namespace lockstep::cuda
