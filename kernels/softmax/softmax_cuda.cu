#include "core/cuda/launch.h"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/softmax/softmax.h"

namespace lockstep::cuda {
namespace {

// One pass over memory: the second sweep finds the row in the cache.
// Grid: one block per row. Shared memory: two f32 per warp. Deterministic: the sum's order depends
// only on c.
template <bool kLogarithm, int Threads, bool kAligned, class T>
__global__ void __launch_bounds__(Threads) SoftmaxForwardKernel(const T* x, int64_t c, T* y) {
  constexpr int N = kPackSize<T>;
  __shared__ float scratch[2 * Threads / kWarpSize];
  const T* from = x + blockIdx.x * c;
  T* to = y + blockIdx.x * c;
  const MaxAndSum row = RowMaxAndSum<Threads, kAligned>(from, c, scratch);
  const float factor = 1.0f / row.sum, log_sum = logf(row.sum);
  ForEachPack<Threads, N, 0>(c, [&](int, int64_t at) {
    const Packed<T> v = LoadRow<kAligned, N>(from, at, c);
    Packed<T> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float shifted = ToFloat(v[i]) - row.max;
      out[i] = Convert<T>(kLogarithm ? shifted - log_sum : expf(shifted) * factor);
    }
    StoreRow<kAligned>(to, at, c, out);
  });
}

// dx = y (dy - sum(y dy)), with kLogarithm dx = dy - e^y sum(dy). One pass over memory: y and dy of
// rows up to 128 threads x 2 packs stay in registers, the rest in the cache.
// Grid: one block per row. Shared memory: one f32 per warp. Deterministic: as above.
template <bool kLogarithm, int Threads, bool kAligned, class T>
__global__ void __launch_bounds__(Threads)
    SoftmaxBackwardKernel(const T* y, const T* dy, int64_t c, T* dx, bool accumulate) {
  constexpr int N = kPackSize<T>, kHeld = 2;
  __shared__ float scratch[Threads / kWarpSize];
  y += blockIdx.x * c;
  dy += blockIdx.x * c;
  dx += blockIdx.x * c;
  Packed<T> held_y[kHeld], held_dy[kHeld];
  float sum = 0;
  ForEachPack<Threads, N, kHeld>(c, [&](int k, int64_t at) {
    const Packed<T> vy = LoadRow<kAligned, N>(y, at, c), vdy = LoadRow<kAligned, N>(dy, at, c);
    if (k < kHeld) {
      held_y[k] = vy;
      held_dy[k] = vdy;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum += kLogarithm ? ToFloat(vdy[i]) : ToFloat(vdy[i]) * ToFloat(vy[i]);
    }
  });
  sum = BlockSum<Threads>(sum, scratch);
  ForEachPack<Threads, N, kHeld>(c, [&](int k, int64_t at) {
    const Packed<T> vy = k < kHeld ? held_y[k] : LoadRow<kAligned, N>(y, at, c);
    const Packed<T> vdy = k < kHeld ? held_dy[k] : LoadRow<kAligned, N>(dy, at, c);
    Packed<T> out, before;
    if (accumulate) before = LoadRow<kAligned, N>(dx, at, c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = kLogarithm ? ToFloat(vdy[i]) - expf(ToFloat(vy[i])) * sum
                                 : ToFloat(vy[i]) * (ToFloat(vdy[i]) - sum);
      out[i] = Convert<T>(accumulate ? ToFloat(before[i]) + g : g);
    }
    StoreRow<kAligned>(dx, at, c, out);
  });
}

// Calls f(tag, threads, aligned, logarithm) with the kernels' template arguments.
template <class F>
void Dispatch(bool logarithm, const Tensor& a, const Tensor& b, const Tensor& c, const F& f) {
  DispatchFloat("softmax", a.dtype(), [&]<class T>(TypeTag<T> tag) {
    const int64_t columns = a.dim(1);
    DispatchRowThreads(DivideUp(columns, kPackSize<T>), [&](auto threads) {
      DispatchBool(AlignedRows(columns, Data<T>(a), Data<T>(b), Data<T>(c)), [&](auto aligned) {
        DispatchBool(logarithm, [&](auto is_log) { f(tag, threads, aligned, is_log); });
      });
    });
  });
}

void SoftmaxForwardCuda(Stream stream, bool logarithm, const Tensor& x, const Tensor& y) {
  if (x.numel() == 0) return;
  Dispatch(logarithm, x, y, y, [&]<class T>(TypeTag<T>, auto threads, auto aligned, auto is_log) {
    constexpr int kThreads = decltype(threads)::value;
    Launch({"softmax_forward", x},
           SoftmaxForwardKernel<decltype(is_log)::value, kThreads, decltype(aligned)::value, T>,
           Blocks(x.dim(0), 1), kThreads, 0, stream, Data<T>(x), x.dim(1), Data<T>(y));
  });
}

void SoftmaxBackwardCuda(Stream stream, bool logarithm, const Tensor& y, const Tensor& dy,
                         const Tensor& dx, bool accumulate) {
  if (y.numel() == 0) return;
  Dispatch(logarithm, y, dy, dx, [&]<class T>(TypeTag<T>, auto threads, auto aligned, auto is_log) {
    constexpr int kThreads = decltype(threads)::value;
    Launch({"softmax_backward", y},
           SoftmaxBackwardKernel<decltype(is_log)::value, kThreads, decltype(aligned)::value, T>,
           Blocks(y.dim(0), 1), kThreads, 0, stream, Data<T>(y), Data<T>(dy), y.dim(1), Data<T>(dx),
           accumulate);
  });
}

LS_REGISTER(softmax_forward, DeviceType::kCuda, SoftmaxForwardCuda);
LS_REGISTER(softmax_backward, DeviceType::kCuda, SoftmaxBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
