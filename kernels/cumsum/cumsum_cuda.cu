#include <algorithm>

#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/cumsum/cumsum.h"

namespace lockstep::cuda {
namespace {

constexpr int kWarps = 8;  // of a block
// Terms that are added one after the other: a sum is that of whole blocks plus that of the last
// block so far, so the error grows with the number of blocks instead of that of terms.
constexpr int64_t kBlock = 256;

// In which elements of T are added; unsigned integers wrap around.
template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, float>;

template <class T>
__device__ void WriteSum(T* y, SumOf<T> sum, bool accumulate) {
  *y = Convert<T>(accumulate ? Convert<SumOf<T>>(*y) + sum : sum);
}

// Rows of [rows, n], a warp each, 32 elements at a time. No shared memory. Deterministic: the order
// depends only on n.
template <class T>
__global__ void ScanRowsKernel(const T* x, int64_t rows, int64_t n, bool reverse, bool accumulate,
                               T* y) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + WarpOfBlock();
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  SumOf<T> before = 0, block = 0;
  for (int64_t first = 0; first < n; first += kWarpSize) {
    if (first % (kBlock * kWarpSize) == 0) {
      before += block;
      block = 0;
    }
    const int64_t r = first + lane;
    const int64_t at = row * n + (reverse ? n - 1 - r : r);
    SumOf<T> sum = r < n ? Convert<SumOf<T>>(x[at]) : SumOf<T>(0);
#pragma unroll
    for (int width = 1; width < kWarpSize; width *= 2) {
      const SumOf<T> left = __shfl_up_sync(kFullWarp, sum, width);
      if (lane >= width) sum += left;
    }
    if (r < n) WriteSum(y + at, before + (block + sum), accumulate);
    block += __shfl_sync(kFullWarp, sum, kWarpSize - 1);
  }
}

// Columns of [outer, n, inner], a thread each. No shared memory. Deterministic: the order depends
// only on n.
template <class T>
__global__ void ScanColumnsKernel(const T* x, int64_t columns, int64_t n, int64_t inner,
                                  bool reverse, bool accumulate, T* y) {
  const int64_t column = GlobalThread();
  if (column >= columns) return;
  const int64_t first = column / inner * n * inner + column % inner;
  SumOf<T> before = 0, block = 0;
  for (int64_t r = 0; r < n; ++r) {
    if (r % kBlock == 0) {
      before += block;
      block = 0;
    }
    const int64_t at = first + (reverse ? n - 1 - r : r) * inner;
    block += Convert<SumOf<T>>(x[at]);
    WriteSum(y + at, before + block, accumulate);
  }
}

void CumSumCuda(Stream stream, const Tensor& x, bool reverse, const Tensor& y, bool accumulate) {
  if (x.numel() == 0) return;
  const int64_t n = x.dim(1), inner = x.dim(2), columns = x.dim(0) * inner;
  const auto run = [&]<class T>(TypeTag<T>) {
    if (inner == 1) {
      Launch({"cum_sum", x}, ScanRowsKernel<T>, Blocks(columns, kWarps), kWarps * kWarpSize, 0,
             stream, Data<T>(x), columns, n, reverse, accumulate, Data<T>(y));
    } else {
      LaunchThreads({"cum_sum", x}, ScanColumnsKernel<T>, columns, stream, Data<T>(x), columns, n,
                    inner, reverse, accumulate, Data<T>(y));
    }
  };
  if (x.dtype() == DType::kI64) return run(TypeTag<int64_t>());
  DispatchFloat("cumsum", x.dtype(), run);
}

LS_REGISTER(cum_sum, DeviceType::kCuda, CumSumCuda);

}  // namespace
}  // namespace lockstep::cuda
