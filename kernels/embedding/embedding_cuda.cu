#include <cmath>

#include "kernels/cuda/rows.cuh"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/sorted_places.cuh"

namespace lockstep::cuda {
namespace {

// y[i] = weight[ids[i] - first], or zeros for rows that the part lacks: one pass over memory. An id
// outside [0, whole) cannot be reported to the host: its row is NaN.
// Grid: one block per id. No shared memory.
template <bool kAligned, class T, class I>
__global__ void EmbeddingForwardKernel(const I* ids, const T* weight, int64_t first, int64_t v,
                                       int64_t whole, int64_t c, T* y) {
  constexpr int N = kPackSize<T>;
  const int64_t id = ids[blockIdx.x];
  const bool known = id >= 0 && id < whole, here = known && id >= first && id < first + v;
  T* out = y + blockIdx.x * c;
  for (int64_t at = threadIdx.x * N; at < c; at += static_cast<int64_t>(blockDim.x) * N) {
    Packed<T> x;
    if (here) {
      x = LoadRow<kAligned, N>(weight + (id - first) * c, at, c);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = Convert<T>(known ? 0.0f : NAN);
    }
    StoreRow<kAligned>(out, at, c, x);
  }
}

// dweight[v] = the sum of dy[i] over the places i of id v, in their order, or += that.
// Grid: one block per row of the weight. No shared memory. Deterministic: one thread adds up a
// channel; four rows of dy are in flight at a time.
template <bool kAligned, class T, class D>
__global__ void EmbeddingBackwardKernel(const int* start, const int* positions, const T* dy,
                                        int64_t c, D* dweight, bool accumulate) {
  constexpr int N = kPackSize < T >> kPackSize<D> ? kPackSize<T> : kPackSize<D>;
  constexpr int kAhead = 4;
  const int begin = start[blockIdx.x], end = start[blockIdx.x + 1];
  if (begin == end && accumulate) return;
  D* out = dweight + blockIdx.x * c;
  for (int64_t at = threadIdx.x * N; at < c; at += static_cast<int64_t>(blockDim.x) * N) {
    float sum[N] = {};
    int place = begin;
    for (; place + kAhead <= end; place += kAhead) {
      Packed<T, N> g[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        g[k] = LoadRow<kAligned, N>(dy + positions[place + k] * c, at, c);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += ToFloat(g[k][i]);
      }
    }
    for (; place < end; ++place) {
      const Packed<T, N> g = LoadRow<kAligned, N>(dy + positions[place] * c, at, c);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += ToFloat(g[i]);
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

void EmbeddingForwardCuda(Stream stream, const Tensor& ids, const Tensor& weight, TablePart part,
                          const Tensor& y) {
  const int64_t c = weight.dim(1);
  if (y.numel() == 0) return;
  DispatchFloat("embedding", weight.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    DispatchIndex("embedding", ids.dtype(), [&](auto id_tag) {
      using I = typename decltype(id_tag)::type;
      DispatchBool(AlignedRows(c, Data<T>(weight), Data<T>(y)), [&](auto aligned) {
        Launch({"embedding_forward", ids, weight},
               EmbeddingForwardKernel<decltype(aligned)::value, T, I>, Blocks(ids.numel(), 1),
               RowThreads(c, kPackSize<T>), 0, stream, Data<I>(ids), Data<T>(weight), part.first,
               weight.dim(0), part.Whole(weight.dim(0)), c, Data<T>(y));
      });
    });
  });
}

void EmbeddingBackwardCuda(Stream stream, const Tensor& ids, const Tensor& dy, TablePart part,
                           const Tensor& dweight, bool accumulate) {
  const int64_t v = dweight.dim(0), c = dweight.dim(1);
  if (dweight.numel() == 0) return;
  const SortedPlaces places = SortPlaces(stream, ids, part.first, v);
  DispatchFloat("embedding", dy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    DispatchFloat("embedding", dweight.dtype(), [&](auto to_tag) {
      using D = typename decltype(to_tag)::type;
      const T* from = Data<T>(dy);
      D* to = Data<D>(dweight);
      const bool is_aligned = AlignedRows(c, from) && AlignedRows(c, to);
      DispatchBool(is_aligned, [&](auto aligned) {
        Launch({"embedding_backward", dy, dweight},
               EmbeddingBackwardKernel<decltype(aligned)::value, T, D>, Blocks(v, 1),
               RowThreads(c, std::max(kPackSize<T>, kPackSize<D>)), 0, stream,
               Data<int>(places.start), Data<int>(places.positions), from, c, to, accumulate);
      });
    });
  });
}

LS_REGISTER(embedding_forward, DeviceType::kCuda, EmbeddingForwardCuda);
LS_REGISTER(embedding_backward, DeviceType::kCuda, EmbeddingBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
