#include "kernels/cuda/shared.cuh"
#include "tests/cudasim/kernels.h"
#include "tests/cudasim/launch_kernel.cuh"

namespace lockstep {
namespace {

__global__ void SaxpyKernel(const float* x, float* y, float alpha, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = fmaf(alpha, x[i], y[i]);
}

__global__ void SaxpyVectorKernel(const float4* x, float4* y, float alpha, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float4 a = __ldcs(x + i), b = y[i];
  __stcs(y + i, make_float4(fmaf(alpha, a.x, b.x), fmaf(alpha, a.y, b.y), fmaf(alpha, a.z, b.z),
                            fmaf(alpha, a.w, b.w)));
}

// A tree in shared memory.
__global__ void __launch_bounds__(256) BlockSumKernel(const float* x, float* out, int n) {
  __shared__ float sums[256];
  const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  sums[threadIdx.x] = i < n ? x[i] : 0.0f;
  __syncthreads();
  for (unsigned stride = 128; stride > 0; stride /= 2) {
    if (threadIdx.x < stride) sums[threadIdx.x] += sums[threadIdx.x + stride];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

// Hillis and Steele's, with two buffers.
__global__ void ScanKernel(const int* x, int* out, int n) {
  DYN_SHARED(int, buffers);
  int* from = buffers;
  int* to = buffers + blockDim.x;
  const int i = static_cast<int>(threadIdx.x);
  from[i] = i < n ? x[i] : 0;
  __syncthreads();
  for (int distance = 1; distance < static_cast<int>(blockDim.x); distance *= 2) {
    to[i] = i >= distance ? from[i] + from[i - distance] : from[i];
    __syncthreads();
    int* last = from;
    from = to;
    to = last;
  }
  if (i < n) out[i] = from[i];
}

__global__ void TransposeKernel(const float* x, float* out, int rows, int columns) {
  using Row = float[33];  // odd: a column of the tile spreads over 32 banks
  __shared__ Row tile[32];
  const int column = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  const int first = static_cast<int>(blockIdx.y * 32);
  for (int i = static_cast<int>(threadIdx.y); i < 32; i += 8) {
    if (first + i < rows && column < columns) {
      tile[i][threadIdx.x] = x[(first + i) * columns + column];
    }
  }
  __syncthreads();
  const int to_column = first + static_cast<int>(threadIdx.x);
  for (int i = static_cast<int>(threadIdx.y); i < 32; i += 8) {
    const int to_row = static_cast<int>(blockIdx.x * 32) + i;
    if (to_row < columns && to_column < rows) {
      out[to_row * rows + to_column] = tile[threadIdx.x][i];
    }
  }
}

__device__ float BlockSum(float x, float* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0f;
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__global__ void LayerNormKernel(const float* x, float* y, int C) {
  __shared__ float scratch[32];
  const float* row = x + static_cast<size_t>(blockIdx.x) * C;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < C; i += blockDim.x) sum += row[i];
  const float mean = BlockSum(sum, scratch) / static_cast<float>(C);
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < C; i += blockDim.x) {
    squares += (row[i] - mean) * (row[i] - mean);
  }
  const float scale = rsqrtf(BlockSum(squares, scratch) / static_cast<float>(C) + 1e-5f);
  float* out = y + static_cast<size_t>(blockIdx.x) * C;
  for (int i = static_cast<int>(threadIdx.x); i < C; i += blockDim.x) {
    out[i] = (row[i] - mean) * scale;
  }
}

constexpr int kTile = 16;

__global__ void MatmulKernel(const float* a, const float* b, float* c, int M, int N, int K) {
  DYN_SHARED(float, tiles);
  float* a_tile = tiles;
  float* b_tile = tiles + kTile * kTile;
  const int row = static_cast<int>(blockIdx.y * kTile + threadIdx.y);
  const int column = static_cast<int>(blockIdx.x * kTile + threadIdx.x);
  const int i = static_cast<int>(threadIdx.y), j = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int k = 0; k < K; k += kTile) {
    a_tile[i * kTile + j] = row < M && k + j < K ? a[row * K + k + j] : 0.0f;
    b_tile[i * kTile + j] = column < N && k + i < K ? b[(k + i) * N + column] : 0.0f;
    __syncthreads();
    for (int l = 0; l < kTile; ++l) sum = fmaf(a_tile[i * kTile + l], b_tile[l * kTile + j], sum);
    __syncthreads();
  }
  if (row < M && column < N) c[row * N + column] = sum;
}

__global__ void HistogramKernel(const uint8_t* x, unsigned* counts, int n) {
  __shared__ unsigned local[256];
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    atomicAdd(&local[x[i]], 1u);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += blockDim.x) {
    atomicAdd(&counts[i], local[i]);
  }
}

// A fence and a counter publish partial sums; the last block to count may read them all.
__global__ void LastBlockSumKernel(const float* x, float* partials, unsigned* counter, float* out,
                                   int n) {
  __shared__ float scratch[32];
  __shared__ bool is_last[1];
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const float sum = BlockSum(i < n ? x[i] : 0.0f, scratch);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = sum;
    __threadfence();
    is_last[0] = atomicAdd(counter, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last[0]) return;
  float total = 0;
  for (unsigned b = threadIdx.x; b < gridDim.x; b += blockDim.x) total += partials[b];
  total = BlockSum(total, scratch);
  if (threadIdx.x == 0) {
    *out = total;
    *counter = 0;
  }
}

__global__ void BlockVotesKernel(const int* predicates, int* out) {
  const int mine = predicates[threadIdx.x];
  const int count = __syncthreads_count(mine);
  const int all = __syncthreads_and(mine);
  const int any = __syncthreads_or(mine);
  if (threadIdx.x == blockDim.x - 1) {
    out[0] = count;
    out[1] = all;
    out[2] = any;
  }
}

__global__ void IndicesKernel(unsigned* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  unsigned* mine = out + 6 * (block * blockDim.x * blockDim.y * blockDim.z + thread);
  __syncthreads();
  mine[0] = threadIdx.x;
  mine[1] = threadIdx.y;
  mine[2] = threadIdx.z;
  mine[3] = blockIdx.x;
  mine[4] = blockIdx.y;
  mine[5] = blockIdx.z;
}

__global__ void AtomicsKernel(int* ints, unsigned long long* longs, float* floats,  // NOLINT
                              double* doubles) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&ints[0], i);
  atomicSub(&ints[1], i);
  atomicMax(&ints[2], i);
  atomicMin(&ints[3], -i);
  atomicOr(&ints[4], 1 << (i % 20));
  atomicAnd(&ints[5], ~(1 << (i % 20)));
  atomicXor(&ints[6], i);
  if (atomicCAS(&ints[7], i, 1000) == i) atomicExch(&ints[8], i);
  atomicInc(reinterpret_cast<unsigned*>(&ints[9]), 9u);
  atomicDec(reinterpret_cast<unsigned*>(&ints[10]), 9u);
  atomicAdd(&longs[0], 1ull << 33);
  atomicMax(&longs[1], static_cast<unsigned long long>(i) << 35);  // NOLINT
  // Exact in every order: small integers.
  atomicAdd(&floats[0], static_cast<float>(i));
  atomicAdd(&doubles[0], 0.5);
}

}  // namespace

cudaError_t RunSaxpy(const float* x, float* y, float alpha, int n) {
  return LaunchKernel(SaxpyKernel, Blocks(n, 128), 128, 0, x, y, alpha, n);
}
cudaError_t RunSaxpyVector(const float* x, float* y, float alpha, int n) {
  return LaunchKernel(SaxpyVectorKernel, Blocks(n / 4, 96), 96, 0,
                      reinterpret_cast<const float4*>(x), reinterpret_cast<float4*>(y), alpha,
                      n / 4);
}
cudaError_t RunBlockSum(const float* x, float* out, int n) {
  return LaunchKernel(BlockSumKernel, Blocks(n, 256), 256, 0, x, out, n);
}
cudaError_t RunScan(const int* x, int* out, int n) {
  const unsigned threads = Blocks(n, 32) * 32;
  return LaunchKernel(ScanKernel, 1, threads, 2 * threads * sizeof(int), x, out, n);
}
cudaError_t RunTranspose(const float* x, float* out, int rows, int columns) {
  return LaunchKernel(TransposeKernel, dim3(Blocks(columns, 32), Blocks(rows, 32)), dim3(32, 8), 0,
                      x, out, rows, columns);
}
cudaError_t RunLayerNorm(const float* x, float* y, int rows, int C, int threads) {
  return LaunchKernel(LayerNormKernel, static_cast<unsigned>(rows), static_cast<unsigned>(threads),
                      0, x, y, C);
}
cudaError_t RunMatmul(const float* a, const float* b, float* c, int M, int N, int K) {
  return LaunchKernel(MatmulKernel, dim3(Blocks(N, kTile), Blocks(M, kTile)), dim3(kTile, kTile),
                      2 * kTile * kTile * sizeof(float), a, b, c, M, N, K);
}
cudaError_t RunHistogram(const uint8_t* x, unsigned* counts, int n) {
  return LaunchKernel(HistogramKernel, 5, 128, 0, x, counts, n);
}
cudaError_t RunLastBlockSum(const float* x, float* partials, unsigned* counter, float* out, int n) {
  return LaunchKernel(LastBlockSumKernel, Blocks(n, 128), 128, 0, x, partials, counter, out, n);
}
cudaError_t RunBlockVotes(const int* predicates, int* out, int threads) {
  return LaunchKernel(BlockVotesKernel, 1, static_cast<unsigned>(threads), 0, predicates, out);
}
cudaError_t RunIndices(dim3 grid, dim3 block, unsigned* out) {
  return LaunchKernel(IndicesKernel, grid, block, 0, out);
}
cudaError_t RunAtomics(int* ints, unsigned long long* longs, float* floats,  // NOLINT
                       double* doubles) {
  return LaunchKernel(AtomicsKernel, 3, 64, 0, ints, longs, floats, doubles);
}

}  // namespace lockstep
