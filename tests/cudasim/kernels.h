// Typical kernels without bugs, and functions that launch them. nvcc compiles all of them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep {

// y = alpha x + y
cudaError_t RunSaxpy(const float* x, float* y, float alpha, int n);
// The same four at a time; n is a multiple of 4.
cudaError_t RunSaxpyVector(const float* x, float* y, float alpha, int n);
// out[b] = the sum of block b's 256 numbers of x, in a fixed order.
cudaError_t RunBlockSum(const float* x, float* out, int n);
// Inclusive prefix sums of up to 1024 integers, in one block.
cudaError_t RunScan(const int* x, int* out, int n);
// out = x^T for x[rows][columns], tiles of 32 x 32 by blocks of 32 x 8.
cudaError_t RunTranspose(const float* x, float* out, int rows, int columns);
// Rows of C, no parameters; `threads` per block.
cudaError_t RunLayerNorm(const float* x, float* y, int rows, int C, int threads);
// c = a b for a[M][K], b[K][N]; 16 x 16 tiles in dynamic shared memory; any sizes.
cudaError_t RunMatmul(const float* a, const float* b, float* c, int M, int N, int K);
// counts[v] of n bytes, through shared memory.
cudaError_t RunHistogram(const uint8_t* x, unsigned* counts, int n);
// The sum of n numbers in one launch: the last block to finish adds up the blocks' sums.
cudaError_t RunLastBlockSum(const float* x, float* partials, unsigned* counter, float* out, int n);
// The number of values that each of 64 threads writes: see warp_test.cc.
inline constexpr int kWarpFunctions = 19;
cudaError_t RunWarpFunctions(unsigned* out);
// Atomics of each kind: see kernels_test.cc.
cudaError_t RunAtomics(int* ints, unsigned long long* longs, float* floats,
                       double* doubles);  // NOLINT
// Votes over a block: out[0] the count, out[1] and, out[2] or.
cudaError_t RunBlockVotes(const int* predicates, int* out, int threads);
// Every thread writes its indices: 6 numbers.
cudaError_t RunIndices(dim3 grid, dim3 block, unsigned* out);
// One warp multiplies A[16][K] with B[K][8] (B given as its transpose, [8][K]) by mma, K a multiple
// of 16, staged by cp.async and read by ldmatrix; the numbers are bf16.
cudaError_t RunMma(const uint16_t* a, const uint16_t* bt, float* c, int K);
// The same of f32 numbers, which are rounded to TF32.
cudaError_t RunMmaTf32(const float* a, const float* bt, float* c, int K);
// Attention of one head, causal: q, k, v in bf16 and o are [T][64], T a multiple of 16; scores and
// output by mma, softmax in f32, keys and values by two-stage cp.async.
cudaError_t RunAttention(const uint16_t* q, const uint16_t* k, const uint16_t* v, float* o, int T);

}  // namespace lockstep
