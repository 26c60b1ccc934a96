// Sums over the rows of a matrix, in an order that depends only on its shape.
#pragma once

#include <algorithm>

#include "core/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"

namespace lockstep::cuda {

// to[chunk, j] = the sum of from[i, j] over the rows i of a chunk, or += that.
//
// Grid: x covers the columns, kWarpSize packs per block; y the chunks of `chunk_rows` rows. Warp w
// of a block adds rows w, w + 8, ... of its chunk in f32, then warp 0 adds the eight sums in order.
// Shared memory: 8 x 32 packs of f32. Deterministic: no atomics, the order follows from the shape.
inline constexpr int kColumnSumWarps = 8;

template <bool kAligned, class From, class To>
__global__ void __launch_bounds__(kColumnSumWarps* kWarpSize)
    ColumnSumsKernel(const From* from, int64_t rows, int64_t columns, int64_t stride,
                     int64_t chunk_rows, To* to, bool accumulate) {
  constexpr int N = kPackSize<From>;
  __shared__ float sums[kColumnSumWarps * kWarpSize * N];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kWarpSize + lane) * N;
  const int64_t begin = blockIdx.y * chunk_rows;
  const int64_t end = Min(begin + chunk_rows, rows);
  float sum[N] = {};
  if (at < columns) {
#pragma unroll 4
    for (int64_t row = begin + warp; row < end; row += kColumnSumWarps) {
      const Packed<From> x = LoadRow<kAligned, N>(from + row * stride, at, columns);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += ToFloat(x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sums[(warp * N + i) * kWarpSize + lane] = sum[i];
  __syncthreads();
  if (warp != 0 || at >= columns) return;
  To* out = to + blockIdx.y * columns;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (at + i >= columns) break;
    float total = 0;
#pragma unroll
    for (int w = 0; w < kColumnSumWarps; ++w) total += sums[(w * N + i) * kWarpSize + lane];
    out[at + i] = Convert<To>(accumulate ? ToFloat(out[at + i]) + total : total);
  }
}

namespace internal {

template <class From, class To>
void LaunchColumnSums(const char* name, Stream stream, const From* from, int64_t rows,
                      int64_t columns, int64_t stride, int64_t chunk_rows, To* to,
                      bool accumulate) {
  constexpr int kColumns = kWarpSize * kPackSize<From>;
  const int64_t chunks = rows == 0 ? 1 : DivideUp(rows, chunk_rows);
  const dim3 grid(Blocks(columns, kColumns), static_cast<unsigned>(chunks));
  DispatchBool(AlignedRows(columns, from) && stride % kPackSize<From> == 0, [&](auto aligned) {
    Launch(name, ColumnSumsKernel<decltype(aligned)::value, From, To>, grid,
           kColumnSumWarps * kWarpSize, 0, stream, from, rows, columns, stride, chunk_rows, to,
           accumulate);
  });
}

}  // namespace internal

// target (+)= the sums over the rows of `from` [rows, columns], which lie `stride` elements apart.
// For many rows, sums of up to 256 chunks come first, then the sum of those: `from` is read once.
template <class From>
void ColumnSums(const char* name, Stream stream, const From* from, int64_t rows, int64_t columns,
                int64_t stride, const Tensor& target, bool accumulate) {
  if (columns == 0) return;
  constexpr int64_t kLeastRows = 64, kMostChunks = 256;
  DispatchFloat(name, target.dtype(), [&]<class To>(TypeTag<To>) {
    To* to = Data<To>(target);
    const int64_t chunk_rows = std::max(kLeastRows, DivideUp(rows, kMostChunks));
    if (rows <= 8 * kLeastRows) {
      return internal::LaunchColumnSums(name, stream, from, rows, columns, stride, 8 * kLeastRows,
                                        to, accumulate);
    }
    const int64_t chunks = DivideUp(rows, chunk_rows);
    const Tensor partial = Tensor::Empty({chunks, columns}, DType::kF32, target.device());
    internal::LaunchColumnSums(name, stream, from, rows, columns, stride, chunk_rows,
                               Data<float>(partial), false);
    internal::LaunchColumnSums<float, To>(name, stream, Data<float>(partial), chunks, columns,
                                          columns, chunks, to, accumulate);
  });
}

}  // namespace lockstep::cuda
