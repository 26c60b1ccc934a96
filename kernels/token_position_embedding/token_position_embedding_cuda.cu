#include "core/cuda/launch.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/token_position_embedding/token_position_embedding.h"

namespace lockstep::cuda {
namespace {

// y[b, t] = wte[ids[b, t]] + wpe[first_position + t], or wpe[positions[b, t]]: one pass over
// memory. An id outside [0, v), or a position outside [0, p), cannot be reported to the host: its
// row is NaN. Grid: one block per id. No shared memory.
template <bool kAligned, class T, class I>
__global__ void TokenPositionForwardKernel(const I* ids, int64_t length, const T* wte, int64_t v,
                                           const T* wpe, int64_t p, const int32_t* positions,
                                           int64_t first_position, int64_t c, T* y) {
  constexpr int N = kPackSize<T>;
  const int64_t id = ids[blockIdx.x];
  const int64_t position =
      positions != nullptr ? positions[blockIdx.x] : first_position + blockIdx.x % length;
  const bool known = id >= 0 && id < v && position >= 0 && position < p;
  T* out = y + blockIdx.x * c;
  for (int64_t at = threadIdx.x * N; at < c; at += static_cast<int64_t>(blockDim.x) * N) {
    Packed<T> x;
    if (known) {
      const Packed<T> token = LoadRow<kAligned, N>(wte + id * c, at, c);
      const Packed<T> place = LoadRow<kAligned, N>(wpe + position * c, at, c);
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = Convert<T>(ToFloat(token[i]) + ToFloat(place[i]));
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = Convert<T>(NAN);
    }
    StoreRow<kAligned>(out, at, c, x);
  }
}

// dwpe[p] = the sum of dy[b, p - first_position] over the batch in order, or += that; zero where dy
// has no position.
// Grid: one block per position of dwpe. No shared memory. Deterministic: one thread adds up a
// channel.
template <bool kAligned, class T, class D>
__global__ void PositionBackwardKernel(const T* dy, int64_t batch, int64_t length, int64_t c,
                                       int64_t first_position, D* dwpe, bool accumulate) {
  constexpr int N = kPackSize < T >> kPackSize<D> ? kPackSize<T> : kPackSize<D>;
  const int64_t t = blockIdx.x - first_position;
  const bool used = t >= 0 && t < length;
  if (!used && accumulate) return;
  D* out = dwpe + blockIdx.x * c;
  for (int64_t at = threadIdx.x * N; at < c; at += static_cast<int64_t>(blockDim.x) * N) {
    float sum[N] = {};
    if (used) {
#pragma unroll 4
      for (int64_t b = 0; b < batch; ++b) {
        const Packed<T, N> g = LoadRow<kAligned, N>(dy + (b * length + t) * c, at, c);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += ToFloat(g[i]);
      }
    }
    Packed<D, N> total;
    if (accumulate) total = LoadRow<kAligned, N>(out, at, c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      total[i] = Convert<D>(accumulate ? ToFloat(total[i]) + sum[i] : sum[i]);
    }
    StoreRow<kAligned>(out, at, c, total);
  }
}

void ForwardCuda(Stream stream, const Tensor& ids, const Tensor& wte, const Tensor& wpe,
                 int64_t first_position, const Tensor& positions, const Tensor& y) {
  if (y.numel() == 0) return;
  const int64_t c = wte.dim(1);
  DispatchFloat("token_position_embedding", wte.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchIndex("token_position_embedding", ids.dtype(), [&]<class I>(TypeTag<I>) {
      DispatchBool(AlignedRows(c, Data<T>(wte), Data<T>(wpe), Data<T>(y)), [&](auto aligned) {
        Launch({"token_position_embedding_forward", ids, wte, wpe, positions},
               TokenPositionForwardKernel<decltype(aligned)::value, T, I>, Blocks(ids.numel(), 1),
               RowThreads(c, kPackSize<T>), 0, stream, Data<I>(ids), ids.dim(1), Data<T>(wte),
               wte.dim(0), Data<T>(wpe), wpe.dim(0),
               positions.defined() ? Data<int32_t>(positions) : nullptr, first_position, c,
               Data<T>(y));
      });
    });
  });
}

void BackwardCuda(Stream stream, const Tensor& dy, int64_t first_position, const Tensor& dwpe,
                  bool accumulate) {
  if (dwpe.numel() == 0) return;
  const int64_t c = dy.dim(2);
  DispatchFloat("token_position_embedding", dy.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchFloat("token_position_embedding", dwpe.dtype(), [&]<class D>(TypeTag<D>) {
      const T* from = Data<T>(dy);
      D* to = Data<D>(dwpe);
      DispatchBool(AlignedRows(c, from) && AlignedRows(c, to), [&](auto aligned) {
        Launch({"token_position_embedding_backward", dy, dwpe},
               PositionBackwardKernel<decltype(aligned)::value, T, D>, Blocks(dwpe.dim(0), 1),
               RowThreads(c, std::max(kPackSize<T>, kPackSize<D>)), 0, stream, from, dy.dim(0),
               dy.dim(1), c, first_position, to, accumulate);
      });
    });
  });
}

LS_REGISTER(token_position_embedding_forward, DeviceType::kCuda, ForwardCuda);
LS_REGISTER(token_position_embedding_backward, DeviceType::kCuda, BackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
