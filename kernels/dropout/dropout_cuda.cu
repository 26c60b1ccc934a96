#include <algorithm>

#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/dropout/dropout.h"
#include "kernels/dropout/dropout_mask.h"

namespace lockstep::cuda {
namespace {

// What a mask is drawn from, and what it does.
struct Mask {
  uint64_t seed, stream;
  uint64_t first;  // number of element 0 in the tensor of the whole batch
  uint32_t threshold;
  float scale;  // of what is kept
};

// Multiplies the pack that starts at element `begin` by the mask. Four neighbouring elements share
// a block of random numbers.
template <class T, int N>
__device__ void ApplyMask(const Mask& mask, int64_t begin, const Packed<T, N>& x, float (&y)[N]) {
  const Philox philox(mask.seed);
  const uint64_t element = mask.first + static_cast<uint64_t>(begin);
  uint64_t number = element >> 2;
  Philox::Block block = philox(mask.stream, number);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const uint64_t e = element + static_cast<uint64_t>(i);
    if (e >> 2 != number) {
      number = e >> 2;
      block = philox(mask.stream, number);
    }
    const bool kept = DropoutKeeps(block, e, mask.threshold);
    y[i] = kept ? ToFloat(x[i]) * mask.scale : 0.0f;
  }
}

// out = in * mask, or out += that: the pack of this thread.
template <bool accumulate, class T>
__device__ void DropPack(const Mask& mask, int64_t n, bool packed, const T* in, T* out) {
  constexpr int N = kPackSize<T>;
  const int64_t begin = GlobalThread() * N;
  if (begin >= n) return;
  const int count = static_cast<int>(n - begin < N ? n - begin : N);
  const bool whole = packed && count == N;
  const T zero = Convert<T>(0.0f);
  float dropped[N];
  ApplyMask(mask, begin, whole ? Load(in + begin) : LoadSome(in + begin, count, zero), dropped);
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
// the grid has a block even where x has no element. `per_sample`: elements of a sample.
template <class T>
__global__ void DropoutForwardKernel(int64_t n, bool packed, int64_t per_sample, uint64_t site,
                                     uint32_t threshold, float scale, const StepValues* values,
                                     const T* x, T* y, int64_t* key) {
  const uint64_t stream = DropoutStream(site, values->step);
  const int64_t first_sample = values->first_sample;
  if (GlobalThread() == 0) {
    key[0] = static_cast<int64_t>(values->seed);
    key[1] = static_cast<int64_t>(stream);
    key[2] = first_sample;
  }
  const uint64_t first = static_cast<uint64_t>(first_sample) * static_cast<uint64_t>(per_sample);
  DropPack<false>({values->seed, stream, first, threshold, scale}, n, packed, x, y);
}

template <bool accumulate, class T>
__global__ void DropoutBackwardKernel(int64_t n, bool packed, int64_t per_sample,
                                      uint32_t threshold, float scale, const int64_t* key,
                                      const T* dy, T* dx) {
  const uint64_t first = static_cast<uint64_t>(key[2]) * static_cast<uint64_t>(per_sample);
  DropPack<accumulate>(
      {static_cast<uint64_t>(key[0]), static_cast<uint64_t>(key[1]), first, threshold, scale}, n,
      packed, dy, dx);
}

int64_t PerSample(const Tensor& x, int64_t samples) {
  return x.numel() == 0 ? 0 : x.numel() / samples;
}

void DropoutForwardCuda(Stream stream, const Tensor& x, int64_t samples, double p, uint64_t site,
                        const StepValues* values, const Tensor& y, const Tensor& key) {
  DispatchFloat("dropout", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* in = Data<T>(x);
    T* out = Data<T>(y);
    const unsigned blocks = Blocks(x.numel(), kElementwiseThreads * kPackSize<T>);
    Launch({"dropout_forward", x}, DropoutForwardKernel<T>, std::max(blocks, 1u),
           kElementwiseThreads, 0, stream, x.numel(), AllAligned16(in, out), PerSample(x, samples),
           site, DropoutThreshold(p), static_cast<float>(1 / (1 - p)), values, in, out,
           Data<int64_t>(key));
  });
}

void DropoutBackwardCuda(Stream stream, const Tensor& dy, int64_t samples, double p,
                         const Tensor& key, const Tensor& dx, bool accumulate) {
  DispatchFloat("dropout", dy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* in = Data<T>(dy);
    T* out = Data<T>(dx);
    DispatchBool(accumulate, [&](auto flag) {
      constexpr bool kAccumulate = decltype(flag)::value;
      Launch({"dropout_backward", dy}, DropoutBackwardKernel<kAccumulate, T>,
             Blocks(dy.numel(), kElementwiseThreads * kPackSize<T>), kElementwiseThreads, 0, stream,
             dy.numel(), AllAligned16(in, out), PerSample(dy, samples), DropoutThreshold(p),
             static_cast<float>(1 / (1 - p)), Data<int64_t>(key), in, out);
    });
  });
}

LS_REGISTER(dropout_forward, DeviceType::kCuda, DropoutForwardCuda);
LS_REGISTER(dropout_backward, DeviceType::kCuda, DropoutBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
