// Folds: sums and products of a function of each element. Which function is an argument of the
// kernels: memory bounds them, and a branch that all threads take alike costs less than a kernel
// for each fold.
#include <algorithm>
#include <cmath>

#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/reduce/reduce.h"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32, kGroups = kThreads / kLanes;
constexpr int64_t kRowChunk = 4096;    // elements that a block folds along a row
constexpr int64_t kColumnChunk = 256;  // elements that a block folds down each of its columns

// Chunks of constant length are folded, and their results again, until one is left: `first` is the
// pass over x, `last` the one that leaves one.
struct FoldPass {
  ReduceFold fold;
  bool first, last;
  float scale;

  __device__ bool multiplies() const {
    return fold == ReduceFold::kProduct || fold == ReduceFold::kNonzeroProduct;
  }
  __device__ float identity() const { return multiplies() ? 1.0f : 0.0f; }
  __device__ float operator()(float a, float b) const { return multiplies() ? a * b : a + b; }

  __device__ float ShiftOf(const float* shift, int64_t column) const {
    const float s = shift != nullptr ? shift[column] : 0.0f;
    return fold == ReduceFold::kLogSumExp && isinf(s) ? 0.0f : s;
  }
  // What is added or multiplied of an element.
  __device__ float Map(float v, float shift) const {
    if (!first) return v;
    switch (fold) {
      case ReduceFold::kVariance:
      case ReduceFold::kDeviation:
        return (v - shift) * (v - shift);
      case ReduceFold::kAbsSum:
        return fabsf(v);
      case ReduceFold::kNorm:
        return v * v;
      case ReduceFold::kLogSumExp:
        return expf(v - shift);
      case ReduceFold::kNonzeroProduct:
        return v == 0.0f ? 1.0f : v;
      case ReduceFold::kZeros:
      case ReduceFold::kNoZeros:
        return v == 0.0f ? 1.0f : 0.0f;
      case ReduceFold::kNonzeros:
        return v == 0.0f ? 0.0f : 1.0f;
      default:
        return v;
    }
  }
  __device__ float Finish(float total, float shift) const {
    if (!last) return total;
    switch (fold) {
      case ReduceFold::kVariance:
        return total * scale;
      case ReduceFold::kDeviation:
        return sqrtf(total * scale);
      case ReduceFold::kNorm:
        return sqrtf(total);
      case ReduceFold::kLogSumExp:
        return shift + logf(total);
      case ReduceFold::kNoZeros:
        return total == 0.0f ? 1.0f : 0.0f;
      default:
        return total;
    }
  }
};

// Block b folds chunk b % chunks of row b / chunks of [rows, n] into y[b]. Shared memory: a float
// per warp. Deterministic: the order depends only on n.
template <class T>
__global__ void FoldRowChunksKernel(FoldPass pass, const T* x, const float* shift, int64_t n,
                                    int64_t chunks, float* y) {
  __shared__ float scratch[kThreads / kWarpSize];
  const int64_t row = blockIdx.x / chunks, from = blockIdx.x % chunks * kRowChunk;
  const int64_t end = Min(from + kRowChunk, n);
  const float s = pass.ShiftOf(shift, row);
  float part = pass.identity();
  for (int64_t i = from + threadIdx.x; i < end; i += kThreads) {
    part = pass(part, pass.Map(Convert<float>(x[row * n + i]), s));
  }
  const float total = BlockReduce<kThreads>(part, pass, &scratch[0], pass.identity());
  if (threadIdx.x == 0) y[blockIdx.x] = pass.Finish(total, s);
}

// Down the columns of [outer, n, inner], all (outer, inner) pairs being columns one after the
// other: a block takes chunks of 32 columns; its warp g folds rows g, g + 8, ..., and warp 0 the
// eight warps' results. y: [outer, chunks, inner]. Grid: columns in x, chunks in y. Shared memory:
// a float per thread. Deterministic: the order depends only on n.
template <class T>
__global__ void FoldColumnChunksKernel(FoldPass pass, const T* x, const float* shift,
                                       int64_t columns, int64_t n, int64_t inner, int64_t chunks,
                                       float* y) {
  __shared__ float parts[kThreads];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + lane;
  const bool inside = column < columns;
  const int64_t outer = column / inner, i = column % inner;
  const float s = inside ? pass.ShiftOf(shift, column) : 0.0f;
  for (int64_t chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
    const int64_t from = chunk * kColumnChunk, end = Min(from + kColumnChunk, n);
    float part = pass.identity();
    for (int64_t r = from + group; inside && r < end; r += kGroups) {
      part = pass(part, pass.Map(Convert<float>(x[(outer * n + r) * inner + i]), s));
    }
    parts[threadIdx.x] = part;
    __syncthreads();
    if (group == 0 && inside) {
      for (int g = 1; g < kGroups; ++g) part = pass(part, parts[g * kLanes + lane]);
      y[(outer * chunks + chunk) * inner + i] = pass.Finish(part, s);
    }
    __syncthreads();
  }
}

// x: [outer, n, inner].
template <class T>
void FoldFrom(Stream stream, FoldPass pass, const T* x, const float* shift, int64_t outer,
              int64_t n, int64_t inner, float* y) {
  const bool rows = inner == 1 && n >= kThreads;
  const int64_t chunks = std::max<int64_t>(1, DivideUp(n, rows ? kRowChunk : kColumnChunk));
  pass.last = chunks == 1;
  const Tensor parts =
      pass.last ? Tensor() : Tensor::Empty({outer, chunks, inner}, DType::kF32, stream.device);
  float* to = pass.last ? y : Data<float>(parts);
  if (rows) {
    Launch("reduce_fold", FoldRowChunksKernel<T>, Blocks(outer * chunks, 1), kThreads, 0, stream,
           pass, x, shift, n, chunks, to);
  } else {
    const int64_t columns = outer * inner;
    const auto grid_y = static_cast<unsigned>(std::min<int64_t>(chunks, 65535));
    Launch("reduce_fold", FoldColumnChunksKernel<T>, dim3(Blocks(columns, kLanes), grid_y),
           kThreads, 0, stream, pass, x, shift, columns, n, inner, chunks, to);
  }
  if (pass.last) return;
  pass.first = false;
  FoldFrom<float>(stream, pass, to, shift, outer, chunks, inner, y);
}

void ReduceFoldCuda(Stream stream, ReduceFold fold, const Tensor& x, const Tensor& shift,
                    double scale, const Tensor& y) {
  if (y.numel() == 0) return;
  const auto run = [&](const auto* in) {
    FoldFrom(stream, {fold, true, false, static_cast<float>(scale)}, in, DataOrNull<float>(shift),
             x.dim(0), x.dim(1), x.dim(2), Data<float>(y));
  };
  if (x.dtype() == DType::kBool) return run(Data<bool>(x));
  DispatchFloat("reduce", x.dtype(), [&]<class T>(TypeTag<T>) { run(Data<T>(x)); });
}

__device__ float FoldDerivative(ReduceFold fold, float scale, float v, float a, float b, float dy) {
  switch (fold) {
    case ReduceFold::kVariance:
      return 2.0f * scale * dy * (v - a);
    case ReduceFold::kDeviation:
      return b == 0.0f ? 0.0f : scale * dy * ((v - a) / b);
    case ReduceFold::kAbsSum:
      return v > 0.0f ? dy : v < 0.0f ? -dy : v * dy;
    case ReduceFold::kNorm:
      return b == 0.0f ? 0.0f : dy * (v / b);
    case ReduceFold::kLogSumExp:
      return dy * expf(v - (b == -INFINITY ? 0.0f : b));
    default:  // kProduct
      return b == 0.0f ? dy * (a / v) : b == 1.0f && v == 0.0f ? dy * a : 0.0f;
  }
}

// One element of x [outer, n, inner] per thread. No shared memory.
template <class T>
__global__ void FoldGradientKernel(ReduceFold fold, float scale, const T* x, const float* a,
                                   const float* b, const T* dy, int64_t elements, int64_t n,
                                   int64_t inner, T* dx, bool accumulate) {
  const int64_t i = GlobalThread();
  if (i >= elements) return;
  const int64_t column = i / (n * inner) * inner + i % inner;
  const float g = FoldDerivative(fold, scale, ToFloat(x[i]), a != nullptr ? a[column] : 0.0f,
                                 b != nullptr ? b[column] : 0.0f, ToFloat(dy[column]));
  dx[i] = Convert<T>(accumulate ? ToFloat(dx[i]) + g : g);
}

void ReduceFoldBackwardCuda(Stream stream, ReduceFold fold, const Tensor& x, const Tensor& a,
                            const Tensor& b, double scale, const Tensor& dy, const Tensor& dx,
                            bool accumulate) {
  DispatchFloat("reduce", x.dtype(), [&]<class T>(TypeTag<T>) {
    LaunchThreads({"reduce_fold_backward", x, dy}, FoldGradientKernel<T>, x.numel(), stream, fold,
                  static_cast<float>(scale), Data<T>(x), DataOrNull<float>(a), DataOrNull<float>(b),
                  Data<T>(dy), x.numel(), x.dim(1), x.dim(2), Data<T>(dx), accumulate);
  });
}

LS_REGISTER(reduce_fold, DeviceType::kCuda, ReduceFoldCuda);
LS_REGISTER(reduce_fold_backward, DeviceType::kCuda, ReduceFoldBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
