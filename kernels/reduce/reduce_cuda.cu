#include <algorithm>

#include "core/cuda/launch.h"
#include "core/kernel_choices.h"
#include "kernels/cuda/any_dtype.cuh"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/reduce/reduce.h"

namespace lockstep::cuda {
namespace {

// ---- Sums ----
//
// A sum is cut into chunks whose length is a constant; the chunks' sums, in f32, are summed again
// in the same way until one is left. The order depends only on the sizes.

constexpr int kThreads = 256;
constexpr int64_t kRowChunk = 4096;  // terms that a block adds along a row
constexpr int64_t kWarpRow = 256;    // shorter rows get a warp each
constexpr int kLanes = 32, kGroups = kThreads / kLanes;
constexpr int64_t kColumnChunk = 256;  // terms that a block adds down each of its columns

// The sum of x[i] for i = from, from + step, ... < n, in packs if `packed`.
template <class T>
__device__ float StridedSum(const T* x, int64_t n, bool packed, int thread, int threads) {
  constexpr int N = kPackSize<T>;
  float sum = 0;
  for (int64_t begin = int64_t{thread} * N; begin < n; begin += int64_t{threads} * N) {
    const int count = CountWithin<N>(begin, n);
    const Packed<T> pack =
        packed && count == N ? Load(x + begin) : LoadSome(x + begin, count, Convert<T>(0.0f));
#pragma unroll
    for (int i = 0; i < N; ++i) sum += ToFloat(pack[i]);
  }
  return sum;
}

template <class To>
__device__ void WriteSum(To* y, float sum, bool accumulate) {
  *y = Convert<To>(accumulate ? ToFloat(*y) + sum : sum);
}

// A warp per row of [rows, n], eight rows per block; no shared memory.
template <class T, class To>
__global__ void SumShortRowsKernel(const T* x, int64_t rows, int64_t n, bool packed, float scale,
                                   bool accumulate, To* y) {
  const int64_t row = GlobalThread() / kWarpSize;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float sum = WarpSum(StridedSum(x + row * n, n, packed, lane, kWarpSize));
  if (lane == 0) WriteSum(y + row, scale * sum, accumulate);
}

// Block b adds chunk b % chunks of row b / chunks of [rows, n] into y[b]. Shared memory: a float
// per warp.
template <class T, class To>
__global__ void SumRowChunksKernel(const T* x, int64_t n, int64_t chunks, bool packed, float scale,
                                   bool accumulate, To* y) {
  __shared__ float scratch[kThreads / kWarpSize];
  const int64_t row = blockIdx.x / chunks, from = blockIdx.x % chunks * kRowChunk;
  const int64_t length = Min(n - from, kRowChunk);
  const float sum =
      StridedSum(x + row * n + from, length, packed, static_cast<int>(threadIdx.x), kThreads);
  const float total = BlockSum<kThreads>(sum, &scratch[0]);
  if (threadIdx.x == 0) WriteSum(y + blockIdx.x, scale * total, accumulate);
}

// Down the columns of [outer, n, inner]: a block takes one chunk of rows of 32 columns; its warp g
// adds rows g, g + 8, ..., and warp 0 the eight warps' sums. y: [outer, chunks, inner].
// Grid: columns in x, (outer, chunk) in y. Shared memory: a float per thread.
template <class T, class To>
__global__ void SumColumnChunksKernel(const T* x, int64_t n, int64_t inner, int64_t chunks,
                                      int64_t parts, float scale, bool accumulate, To* y) {
  __shared__ float sums[kThreads];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + lane;
  for (int64_t part = blockIdx.y; part < parts; part += gridDim.y) {
    const int64_t from = part % chunks * kColumnChunk;
    const int64_t end = Min(from + kColumnChunk, n);
    float sum = 0;
    if (column < inner) {
      const T* in = x + part / chunks * n * inner + column;
      for (int64_t r = from + group; r < end; r += kGroups) sum += ToFloat(in[r * inner]);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (group == 0 && column < inner) {
      for (int g = 1; g < kGroups; ++g) sum += sums[g * kLanes + lane];
      WriteSum(y + part * inner + column, scale * sum, accumulate);
    }
    __syncthreads();
  }
}

struct SumShape {
  int64_t outer, reduced, inner;

  int64_t chunks() const {
    return std::max<int64_t>(1, DivideUp(reduced, inner == 1 ? kRowChunk : kColumnChunk));
  }
};

// One pass: y is [outer, chunks, inner].
template <class T, class To>
void SumChunks(Stream stream, const T* x, const SumShape& shape, float scale, bool accumulate,
               To* y) {
  const auto [outer, n, inner] = shape;
  const int64_t chunks = shape.chunks(), parts = outer * chunks;
  if (inner > 1) {
    const auto grid_y = static_cast<unsigned>(std::min<int64_t>(parts, 65535));
    Launch("reduce_sum", SumColumnChunksKernel<T, To>, dim3(Blocks(inner, kLanes), grid_y),
           kThreads, 0, stream, x, n, inner, chunks, parts, scale, accumulate, y);
    return;
  }
  const bool packed = IsAligned16(x) && (outer == 1 || n % kPackSize<T> == 0);
  if (n <= kWarpRow) {
    Launch("reduce_sum", SumShortRowsKernel<T, To>, Blocks(outer, kThreads / kWarpSize), kThreads,
           0, stream, x, outer, n, packed, scale, accumulate, y);
  } else {
    Launch("reduce_sum", SumRowChunksKernel<T, To>, Blocks(parts, 1), kThreads, 0, stream, x, n,
           chunks, packed, scale, accumulate, y);
  }
}

template <class T, class To>
void Sum(Stream stream, const T* x, const SumShape& shape, float scale, bool accumulate, To* y) {
  const int64_t chunks = shape.chunks();
  if (chunks == 1) return SumChunks(stream, x, shape, scale, accumulate, y);
  const Tensor parts =
      Tensor::Empty({shape.outer, chunks, shape.inner}, DType::kF32, stream.device);
  SumChunks(stream, x, shape, 1.0f, false, Data<float>(parts));
  Sum<float, To>(stream, Data<float>(parts), {shape.outer, chunks, shape.inner}, scale, accumulate,
                 y);
}

// Notes large sums down at most half as many columns as a warp has lanes.
void NoteIdleLanes(const SumShape& s, DType dtype) {
  constexpr int64_t kLarge = 1 << 20;
  if (s.inner == 1 || 2 * s.inner > kLanes || s.outer * s.reduced * s.inner < kLarge) return;
  constexpr const char* kOp = "reduce_sum";
  const int64_t problem[] = {s.outer, s.reduced, s.inner, static_cast<int64_t>(dtype)};
  if (!IsNewProblem(kOp, problem)) return;
  NoteKernelChoice(kOp, problem,
                   {.problem = StrCat(dtype, "[", s.outer, ", ", s.reduced, ", ", s.inner,
                                      "] over its second dimension"),
                    .kernel = "a lane per column",
                    .why_slow = "half of a warp's lanes, or more, have no column to add"});
}

void ReduceSumCuda(Stream stream, const Tensor& x, double scale, const Tensor& y, bool accumulate) {
  if (y.numel() == 0) return;
  const SumShape shape{x.dim(0), x.dim(1), x.dim(2)};
  NoteIdleLanes(shape, x.dtype());
  DispatchFloat("sum", x.dtype(), [&]<class T>(TypeTag<T>) {
    const auto* in = Data<T>(x);
    DispatchFloat("sum", y.dtype(), [&]<class To>(TypeTag<To>) {
      Sum(stream, in, shape, static_cast<float>(scale), accumulate, Data<To>(y));
    });
  });
}

// ---- Sums of integers ----

constexpr int64_t kIntegers = 64;  // that a thread adds, kThreads apart

// Each thread adds its neighbours in a column to y, which was 0; a warp of one column does so
// together. Integers may be added in any order, and so by atomics. No shared memory.
template <int kBlock>
__global__ void __launch_bounds__(kBlock)
    SumIntegersKernel(DType dtype, const void* x, int64_t elements, int64_t n, int64_t inner,
                      unsigned long long* y) {  // NOLINT: atomicAdd's type
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlock * kIntegers + threadIdx.x;
  unsigned long long sum = 0;  // NOLINT
  int64_t column = -1;
  for (int64_t k = 0, i = first; k < kIntegers && i < elements; ++k, i += kBlock) {
    const int64_t at = i / (n * inner) * inner + i % inner;
    if (at != column && column >= 0) {
      atomicAdd(y + column, sum);
      sum = 0;
    }
    column = at;
    sum += static_cast<unsigned long long>(ReadAs<int64_t>(dtype, x, i));  // NOLINT
  }
  const int64_t others = __shfl_sync(kFullWarp, column, 0);
  if (__ballot_sync(kFullWarp, column == others) == kFullWarp) {
    sum = WarpSum(sum);
    if (threadIdx.x % kWarpSize != 0) return;
  }
  if (column >= 0) atomicAdd(y + column, sum);
}

void SumIntegersCuda(Stream stream, const Tensor& x, const Tensor& y) {
  fill_slot(stream, y, 0);
  Launch({"sum_integers", x}, SumIntegersKernel<kThreads>, Blocks(x.numel(), kThreads * kIntegers),
         kThreads, 0, stream, x.dtype(), x.raw_data(), x.numel(), x.dim(1), x.dim(2),
         reinterpret_cast<unsigned long long*>(Data<int64_t>(y)));  // NOLINT
}

// ---- Extremes ----

// What is compared of an element of T.
template <class T>
using KeyOf = std::conditional_t<std::is_integral_v<T>, T, float>;

__device__ float Key(Extreme extreme, float v) {
  return extreme == Extreme::kMax ? v : extreme == Extreme::kMin ? -v : fabsf(v);
}
// There is no maximum of absolute values of integers. -v may overflow.
__device__ int64_t Key(Extreme extreme, int64_t v) { return extreme == Extreme::kMax ? v : ~v; }

// No element: below and after everything.
__device__ float Lowest(float) { return -INFINITY; }
__device__ int64_t Lowest(int64_t) { return INT64_MIN; }

// A key and where it is. A NaN is larger than any number; of equal keys the first counts.
template <class K>
struct Best {
  K value;
  int64_t at;

  __device__ void Take(K v, int64_t i) {
    const bool nan = v != v, has_nan = value != value;
    const bool larger = nan != has_nan ? nan : v > value;
    const bool equal = nan == has_nan && (nan || v == value);
    if (larger || (equal && i < at)) {
      value = v;
      at = i;
    }
  }
};

// The elements of [outer, n, inner] whose keys are largest over n. A block has 32 columns, all
// (outer, inner) pairs being columns one after the other; warp g looks at rows g, g + 8, ... Shared
// memory: a Best per thread.
template <class T>
__global__ void ExtremeColumnsKernel(Extreme extreme, const T* x, int64_t columns, int64_t n,
                                     int64_t inner, T* y, int64_t* index) {
  using K = KeyOf<T>;
  __shared__ Best<K> found[kThreads];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + lane;
  const bool inside = column < columns;
  const int64_t first = column / inner * n * inner + column % inner;
  Best<K> best{Lowest(K()), INT64_MAX};
  for (int64_t r = group; inside && r < n; r += kGroups)
    best.Take(Key(extreme, Convert<K>(x[first + r * inner])), r);
  found[threadIdx.x] = best;
  __syncthreads();
  if (group != 0 || !inside) return;
  for (int g = 1; g < kGroups; ++g) {
    const Best<K> other = found[g * kLanes + lane];
    best.Take(other.value, other.at);
  }
  y[column] = x[first + best.at * inner];
  index[column] = best.at;
}

// The same for the rows of [rows, n], a block per row. Shared memory: a Best per warp.
template <class T>
__global__ void ExtremeRowsKernel(Extreme extreme, const T* x, int64_t n, T* y, int64_t* index) {
  using K = KeyOf<T>;
  __shared__ Best<K> found[kThreads / kWarpSize];
  const T* row = x + blockIdx.x * n;
  Best<K> best{Lowest(K()), INT64_MAX};
  for (int64_t r = threadIdx.x; r < n; r += kThreads)
    best.Take(Key(extreme, Convert<K>(row[r])), r);
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const K value = __shfl_xor_sync(kFullWarp, best.value, offset);
    const int64_t at = __shfl_xor_sync(kFullWarp, best.at, offset);
    best.Take(value, at);
  }
  if (threadIdx.x % kWarpSize == 0) found[threadIdx.x / kWarpSize] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / kWarpSize; ++w) best.Take(found[w].value, found[w].at);
  y[blockIdx.x] = row[best.at];
  index[blockIdx.x] = best.at;
}

void ReduceExtremeCuda(Stream stream, Extreme extreme, const Tensor& x, const Tensor& y,
                       const Tensor& index) {
  const int64_t n = x.dim(1), inner = x.dim(2), columns = y.numel();
  const auto run = [&]<class T>(TypeTag<T>) {
    const T* in = Data<T>(x);
    int64_t* at = Data<int64_t>(index);
    if (inner == 1 && n >= kThreads) {
      Launch({"reduce_extreme", x}, ExtremeRowsKernel<T>, Blocks(columns, 1), kThreads, 0, stream,
             extreme, in, n, Data<T>(y), at);
    } else {
      Launch({"reduce_extreme", x}, ExtremeColumnsKernel<T>, Blocks(columns, kLanes), kThreads, 0,
             stream, extreme, in, columns, n, inner, Data<T>(y), at);
    }
  };
  if (x.dtype() == DType::kI64) return run(TypeTag<int64_t>());
  DispatchFloat("reduce", x.dtype(), run);
}

// One element of dx per thread: zeros too, so that dx is written once. No shared memory.
template <class T>
__global__ void ExtremeGradientKernel(const T* dy, const int64_t* index, int64_t elements,
                                      int64_t n, int64_t inner, T* dx) {
  const int64_t i = GlobalThread();
  if (i >= elements) return;
  const int64_t column = i / (n * inner) * inner + i % inner;
  const int64_t r = i / inner % n;
  dx[i] = r == index[column] ? dy[column] : Convert<T>(0.0f);
}

// dx += that: one thread per element of dy, which touches one element of dx.
template <class T>
__global__ void ExtremeGradientAddKernel(const T* dy, const int64_t* index, int64_t columns,
                                         int64_t n, int64_t inner, T* dx) {
  const int64_t column = GlobalThread();
  if (column >= columns) return;
  T& to = dx[(column / inner * n + index[column]) * inner + column % inner];
  to = Convert<T>(ToFloat(to) + ToFloat(dy[column]));
}

void ReduceExtremeBackwardCuda(Stream stream, const Tensor& dy, const Tensor& index,
                               const Tensor& dx, bool accumulate) {
  const int64_t n = dx.dim(1), inner = dx.dim(2);
  DispatchFloat("reduce", dx.dtype(), [&]<class T>(TypeTag<T>) {
    const auto kernel = accumulate ? ExtremeGradientAddKernel<T> : ExtremeGradientKernel<T>;
    const int64_t items = accumulate ? dy.numel() : dx.numel();
    LaunchThreads({"reduce_extreme_backward", dy, dx}, kernel, items, stream, Data<T>(dy),
                  Data<int64_t>(index), items, n, inner, Data<T>(dx));
  });
}

LS_REGISTER(sum_integers, DeviceType::kCuda, SumIntegersCuda);
LS_REGISTER(reduce_sum_slot, DeviceType::kCuda, ReduceSumCuda);
LS_REGISTER(reduce_extreme, DeviceType::kCuda, ReduceExtremeCuda);
LS_REGISTER(reduce_extreme_backward, DeviceType::kCuda, ReduceExtremeBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
