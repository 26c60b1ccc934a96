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

// Places of an id whose rows one block adds up, so that a frequent one (a space, padding) is not
// the work of a single block. Segments begin at the id's first place: where they lie does not
// depend on other ids, of which a rank may have only some.
constexpr int kSegment = 64;

// sum += row(place) for begin <= place < end, in order, 64 bytes of rows in flight at a time.
template <bool kAligned, int N, class F>
__device__ inline void AddRows(int begin, int end, int64_t at, int64_t c, const F& row,
                               float (&sum)[N]) {
  using T = std::remove_cvref_t<decltype(*row(begin))>;
  constexpr int kAhead = 64 / (N * static_cast<int>(sizeof(T)));
  int place = begin;
  for (; place + kAhead <= end; place += kAhead) {
    Packed<T, N> g[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) g[k] = LoadRow<kAligned, N>(row(place + k), at, c);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += ToFloat(g[k][i]);
    }
  }
  for (; place < end; ++place) {
    const Packed<T, N> g = LoadRow<kAligned, N>(row(place), at, c);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += ToFloat(g[i]);
  }
}

// partial[w] = the sum of dy over the whole segment, of kSegment places of one id, that begins in
// window w of as many sorted places, if one does. No other does, and it has the window's last
// place. Grid: one block per whole window. No shared memory. Deterministic: one thread adds up a
// channel.
template <bool kAligned, class T>
__global__ void EmbeddingSegmentsKernel(const int* start, const int* positions, const int* rows,
                                        const T* dy, int v, int64_t c, float* partial) {
  constexpr int N = kPackSize<T>;
  const int window = static_cast<int>(blockIdx.x) * kSegment;
  const int row = rows[window + kSegment - 1];
  if (row == v) return;
  const int first = start[row];
  const int begin =
      first + (window > first ? (window - first + kSegment - 1) / kSegment * kSegment : 0);
  if (begin + kSegment > start[row + 1]) return;
  float* out = partial + blockIdx.x * c;
  for (int64_t at = threadIdx.x * N; at < c; at += static_cast<int64_t>(blockDim.x) * N) {
    float sum[N] = {};
    AddRows<kAligned>(
        begin, begin + kSegment, at, c, [&](int place) { return dy + positions[place] * c; }, sum);
    Packed<float, N> total;
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] = sum[i];
    StoreRow<kAligned>(out, at, c, total);
  }
}

// dweight[v] = the sum of dy[i] over the places i of id v, or += that: first of the last places,
// which are no whole segment, then of the segments, from `partial`, in their order.
// Grid: one block per row of the weight. No shared memory. Deterministic: one thread adds up a
// channel.
template <bool kAligned, class T, class D>
__global__ void EmbeddingBackwardKernel(const int* start, const int* positions, const T* dy,
                                        const float* partial, int64_t c, D* dweight,
                                        bool accumulate) {
  constexpr int N = kPackSize < T >> kPackSize<D> ? kPackSize<T> : kPackSize<D>;
  const int begin = start[blockIdx.x], end = start[blockIdx.x + 1];
  if (begin == end && accumulate) return;
  const int segments = (end - begin) / kSegment;
  D* out = dweight + blockIdx.x * c;
  for (int64_t at = threadIdx.x * N; at < c; at += static_cast<int64_t>(blockDim.x) * N) {
    float sum[N] = {};
    AddRows<kAligned>(
        begin + segments * kSegment, end, at, c,
        [&](int place) { return dy + positions[place] * c; }, sum);
    AddRows<kAligned>(
        begin / kSegment, begin / kSegment + segments, at, c,
        [&](int window) { return partial + window * c; }, sum);
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
  DispatchFloat("embedding", weight.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchIndex("embedding", ids.dtype(), [&]<class I>(TypeTag<I>) {
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
  // The windows that may have a whole segment.
  const int64_t windows = ids.numel() / kSegment;
  const Tensor partial = Tensor::Empty({windows, c}, DType::kF32, dy.device());
  DispatchFloat("embedding", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const T* from = Data<T>(dy);
    const int *start = Data<int>(places.start), *positions = Data<int>(places.positions);
    DispatchBool(AlignedRows(c, from), [&](auto aligned) {
      Launch({"embedding_backward", dy, dweight},
             EmbeddingSegmentsKernel<decltype(aligned)::value, T>, Blocks(windows, 1),
             RowThreads(c, kPackSize<T>), 0, stream, start, positions, Data<int>(places.rows), from,
             static_cast<int>(v), c, Data<float>(partial));
    });
    DispatchFloat("embedding", dweight.dtype(), [&]<class D>(TypeTag<D>) {
      D* to = Data<D>(dweight);
      const bool is_aligned = AlignedRows(c, from) && AlignedRows(c, to);
      DispatchBool(is_aligned, [&](auto aligned) {
        Launch({"embedding_backward", dy, dweight},
               EmbeddingBackwardKernel<decltype(aligned)::value, T, D>, Blocks(v, 1),
               RowThreads(c, std::max(kPackSize<T>, kPackSize<D>)), 0, stream, start, positions,
               from, Data<float>(partial), c, to, accumulate);
      });
    });
  });
}

LS_REGISTER(embedding_forward, DeviceType::kCuda, EmbeddingForwardCuda);
LS_REGISTER(embedding_backward, DeviceType::kCuda, EmbeddingBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
