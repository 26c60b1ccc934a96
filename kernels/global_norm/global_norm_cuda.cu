#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/global_norm/global_norm.h"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFinishThreads = 512;

// The table of a launch travels in the kernel's arguments, of which every GPU takes 4 KiB.
struct GradEntry {
  const void* data;
  int64_t n;
  int first_chunk;  // of the grid
  DType dtype;
  bool aligned;
};
constexpr int kTableGrads = 120;
struct GradTable {
  GradEntry grads[kTableGrads];
  int count;
};
static_assert(sizeof(GradTable) <= 4000, "leaves room for a kernel's other arguments");

template <class T>
__device__ double SquareSum(const T* grad, int n, bool aligned) {
  constexpr int N = kPackSize<T>;
  double sum = 0;
  for (int at = static_cast<int>(threadIdx.x) * N; at < n; at += kThreads * N) {
    const Packed<T> g =
        aligned && at + N <= n ? Load(grad + at) : LoadSome(grad + at, n - at, Convert<T>(0.0f));
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const double x = static_cast<double>(ToFloat(g[i]));
      sum += x * x;
    }
  }
  return sum;
}

// sums[i] = the sum of the squares of chunk i, kGradNormChunk elements of a gradient, in f64. One
// pass over memory.
// Grid: a block to a chunk. Shared memory: one f64 per warp. Deterministic: the order follows from
// the chunk's length; the alignment does not matter.
__global__ void __launch_bounds__(kThreads) GradSquareSumsKernel(GradTable table, double* sums) {
  __shared__ double scratch[kThreads / kWarpSize];
  const int block = static_cast<int>(blockIdx.x);
  int low = 0, high = table.count;  // the last gradient whose chunks begin at or before the block
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.grads[middle].first_chunk <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const GradEntry& grad = table.grads[low];
  const int64_t begin = (block - grad.first_chunk) * kGradNormChunk;
  const int n = CountWithin<kGradNormChunk>(begin, grad.n);
  double sum = 0;
  switch (grad.dtype) {
    case DType::kBF16:
      sum = SquareSum(static_cast<const bf16*>(grad.data) + begin, n, grad.aligned);
      break;
    case DType::kF16:
      sum = SquareSum(static_cast<const f16*>(grad.data) + begin, n, grad.aligned);
      break;
    default:
      sum = SquareSum(static_cast<const float*>(grad.data) + begin, n, grad.aligned);
  }
  sum = BlockSum<kThreads>(sum, scratch);
  if (threadIdx.x == 0) sums[block] = sum;
}

// From the sums of all chunks to the norm, the clip factor and found_inf.
// Grid: one block. Shared memory: one f64 per warp. Deterministic: thread t adds chunks t,
// t + kFinishThreads, ..., and the block their sums.
__global__ void __launch_bounds__(kFinishThreads)
    GradNormFinishKernel(const double* sums, int64_t n, double max_norm, StepValues* values) {
  __shared__ double scratch[kFinishThreads / kWarpSize];
  double total = 0;
  for (int64_t i = threadIdx.x; i < n; i += kFinishThreads) total += sums[i];
  total = BlockSum<kFinishThreads>(total, scratch);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(total) / static_cast<double>(values->loss_scale.scale);
  values->grad_norm = static_cast<float>(norm);
  values->clip_factor = 1;
  if (!(values->grad_norm < INFINITY)) {  // NaN too
    values->found_inf = kNotFinite;
    return;
  }
  if (values->grad_norm > values->norm_limit) values->found_inf = kSpike;
  if (max_norm > 0) {
    const double factor = max_norm / (norm + 1e-6);
    values->clip_factor = static_cast<float>(factor < 1 ? factor : 1.0);
  }
}

void SquareSumsCuda(Stream stream, std::span<const Tensor> grads, const Tensor& sums) {
  double* out = Data<double>(sums);
  GradTable table{};
  int chunks = 0;
  const auto flush = [&] {
    Launch({"grad_norm_square_sums", sums}, GradSquareSumsKernel, static_cast<unsigned>(chunks),
           kThreads, 0, stream, table, out);
    out += chunks;
    table.count = chunks = 0;
  };
  for (const Tensor& grad : grads) {
    if (grad.numel() == 0) continue;
    DispatchFloat("grad_norm", grad.dtype(), [](auto) {});
    const int64_t needed = GradNormChunks(grad);
    if (table.count == kTableGrads || chunks + needed > INT32_MAX) flush();
    table.grads[table.count++] = {grad.raw_data(), grad.numel(), chunks, grad.dtype(),
                                  IsAligned16(grad.raw_data())};
    chunks += Blocks(grad.numel(), kGradNormChunk);
  }
  flush();
}

void FinishCuda(Stream stream, const Tensor& sums, double max_norm, StepValues* values) {
  Launch({"grad_norm_finish", sums}, GradNormFinishKernel, 1, kFinishThreads, 0, stream,
         Data<double>(sums), sums.numel(), max_norm, values);
}

LS_REGISTER(grad_norm_square_sums, DeviceType::kCuda, SquareSumsCuda);
LS_REGISTER(grad_norm_finish, DeviceType::kCuda, FinishCuda);

}  // namespace
}  // namespace lockstep::cuda
