#include <algorithm>

#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/dropout/dropout.h"
#include "kernels/dropout/dropout_mask.cuh"

namespace lockstep::cuda {
namespace {

// out = in * mask, or out += that: the pack of this thread.
template <bool accumulate, class T>
__device__ void DropPack(const ElementMask& mask, int64_t n, bool packed, const T* in, T* out) {
  constexpr int N = kPackSize<T>;
  const int64_t begin = GlobalThread() * N;
  if (begin >= n) return;
  const int count = CountWithin<N>(begin, n);
  const bool whole = packed && count == N;
  const T zero = Convert<T>(0.0f);
  const Packed<T> x = whole ? Load(in + begin) : LoadSome(in + begin, count, zero);
  float dropped[N];
#pragma unroll
  for (int i = 0; i < N; ++i) dropped[i] = ToFloat(x[i]);
  ApplyMask<false>(mask, begin, dropped);
  Packed<T> y;
  if constexpr (accumulate) y = whole ? Load(out + begin) : LoadSome(out + begin, count, zero);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    y[i] = Convert<T>(accumulate ? ToFloat(y[i]) + dropped[i] : dropped[i]);
  }
  if (whole) {
    Store(out + begin, y);
  } else {
    StoreSome(out + begin, y, count);
  }
}

// One pack per thread; no shared memory. The grid's first thread writes the key for backward, so
// the grid has a block even where x has no element.
template <class T>
__global__ void DropoutForwardKernel(int64_t n, bool packed, DropoutSetting setting, uint64_t site,
                                     const StepValues* values, const T* x, T* y, int64_t* key) {
  const ElementMask mask = DrawMask(setting, values, site, GlobalThread() == 0, key);
  DropPack<false>(mask, n, packed, x, y);
}

template <bool accumulate, class T>
__global__ void DropoutBackwardKernel(int64_t n, bool packed, DropoutSetting setting,
                                      const int64_t* key, const T* dy, T* dx) {
  DropPack<accumulate>(RedrawMask(setting, key), n, packed, dy, dx);
}

int64_t PerSample(const Tensor& x, int64_t samples) {
  return x.numel() == 0 ? 0 : x.numel() / samples;
}

void DropoutForwardCuda(Stream stream, const Tensor& x, int64_t samples, SamplePart part, double p,
                        uint64_t site, const StepValues* values, const Tensor& y,
                        const Tensor& key) {
  DispatchFloat("dropout", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* in = Data<T>(x);
    T* out = Data<T>(y);
    const unsigned blocks = Blocks(x.numel(), kElementwiseThreads * kPackSize<T>);
    Launch({"dropout_forward", x}, DropoutForwardKernel<T>, std::max(blocks, 1u),
           kElementwiseThreads, 0, stream, x.numel(), AllAligned16(in, out),
           MakeDropoutSetting(p, PerSample(x, samples), part), site, values, in, out,
           Data<int64_t>(key));
  });
}

void DropoutBackwardCuda(Stream stream, const Tensor& dy, int64_t samples, SamplePart part,
                         double p, const Tensor& key, const Tensor& dx, bool accumulate) {
  DispatchFloat("dropout", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const T* in = Data<T>(dy);
    T* out = Data<T>(dx);
    DispatchBool(accumulate, [&](auto flag) {
      constexpr bool kAccumulate = decltype(flag)::value;
      LaunchThreads({"dropout_backward", dy}, DropoutBackwardKernel<kAccumulate, T>,
                    DivideUp(dy.numel(), kPackSize<T>), stream, dy.numel(), AllAligned16(in, out),
                    MakeDropoutSetting(p, PerSample(dy, samples), part), Data<int64_t>(key), in,
                    out);
    });
  });
}

LS_REGISTER(dropout_forward, DeviceType::kCuda, DropoutForwardCuda);
LS_REGISTER(dropout_backward, DeviceType::kCuda, DropoutBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
