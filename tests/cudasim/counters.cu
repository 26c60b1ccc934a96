// Kernels of one block, most of them of one warp, with little but accesses to memory; the counts
// are derived in counters_test.cc.
#include <map>

#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/mma.cuh"
#include "tests/cudasim/counters.h"
#include "tests/cudasim/launch_kernel.cuh"

namespace lockstep {
namespace {

__global__ void CopyKernel(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }

__global__ void StrideTwoKernel(const float* x, float* y) { y[threadIdx.x] = x[2 * threadIdx.x]; }

__global__ void MisalignedKernel(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }

// A tile of 32 x 32 whose rows are kWidth floats apart.
template <int kWidth>
__global__ void TransposeKernel(const float* x, float* y) {
  __shared__ float tile[32][kWidth];
  const unsigned t = threadIdx.x;
  for (int row = 0; row < 32; ++row) tile[row][t] = x[row * 32 + t];
  __syncwarp();
  for (int row = 0; row < 32; ++row) y[row * 32 + t] = tile[t][row];
}

__global__ void Float4Kernel(const float* x, float* y) {
  __shared__ float4 s[32];
  const unsigned t = threadIdx.x;
  s[t] = reinterpret_cast<const float4*>(x)[t];
  __syncwarp();
  reinterpret_cast<float4*>(y)[t] = s[t ^ 1];
}

// Pairs of floats, of which each lane's are 16 bytes apart.
__global__ void Float2Kernel(const float* x, float* y) {
  __shared__ float2 s[64];
  const unsigned t = threadIdx.x;
  s[2 * t] = reinterpret_cast<const float2*>(x)[t];
  __syncwarp();
  reinterpret_cast<float2*>(y)[t] = s[2 * (t ^ 1)];
}

__global__ void BroadcastKernel(const float* x, float* y) {
  __shared__ float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = s[7] + x[3];
}

// Four matrices of 8 rows of 16 bytes, which are kStride bytes apart.
template <int kStride>
__global__ void MatricesKernel(const float* x, float* y) {
  __shared__ __align__(16) char rows[32 * kStride];
  const unsigned t = threadIdx.x;
  *reinterpret_cast<float4*>(rows + t * kStride) = reinterpret_cast<const float4*>(x)[t];
  __syncwarp();
  uint32_t values[4];
  cuda::LoadMatrix<4>(values, reinterpret_cast<__nv_bfloat16*>(rows + t * kStride));
  y[t] = __uint_as_float(values[0] + values[1] + values[2] + values[3]);
}

__global__ void AtomicKernel(const float*, float* y) {
  __shared__ unsigned count;
  if (threadIdx.x == 0) count = 0;
  __syncwarp();
  atomicAdd(&count, threadIdx.x + 1);
  __syncwarp();
  atomicAdd(reinterpret_cast<unsigned*>(y), count * threadIdx.x);
}

__global__ void ProductKernel(const float* x, float* y) {
  const float value = x[threadIdx.x];
  const uint32_t bits = __float_as_uint(value), a[4] = {bits, bits, bits, bits};
  const uint32_t b[2] = {bits, bits};
  float sums[4] = {value, value, value, value};
  cuda::MmaM16N8K16<__nv_bfloat16>(sums, a, b, sums);
  cuda::MmaM16N8K16<__half>(sums, a, b, sums);
  cuda::MmaM16N8K16<__half>(sums, a, b, sums);
  y[threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}

// Half of the lanes copy, the others write zeros.
__global__ void AsyncCopyKernel(const float* x, float* y) {
  __shared__ float4 s[32];
  const unsigned t = threadIdx.x;
  cuda::CpAsync<16>(&s[t], x + 4 * t, t < 16 ? 16 : 0);
  cuda::CpAsyncCommit();
  cuda::CpAsyncWait<0>();
  reinterpret_cast<float4*>(y)[t] = s[t];
}

// How the backward of layer norm in 16 bits once added up the gradients of weight and bias: each
// thread those of eight neighbouring columns, in shared memory through generic addresses. A row of
// 768 by 128 threads.
__global__ void OldNormBackwardKernel(const float* x, float* y) {
  extern __shared__ float shared_sums[];
  constexpr int kColumns = 768;
  float* const sums = y != nullptr ? shared_sums : const_cast<float*>(x);  // a generic address
  const unsigned at = 8 * threadIdx.x;
  if (at >= kColumns) return;
  const float dy = x[threadIdx.x], xhat = dy * 0.5f;
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) {
    sums[at + i] += dy * xhat;
    sums[kColumns + at + i] += dy;
  }
}

}  // namespace

cudaError_t RunCounted(const std::string& name, const float* x, float* y) {
  using Kernel = void (*)(const float*, float*);
  static const std::map<std::string, Kernel> kernels = {
      {"Copy", CopyKernel},
      {"StrideTwo", StrideTwoKernel},
      {"Misaligned", MisalignedKernel},
      {"Transpose<32>", TransposeKernel<32>},
      {"Transpose<33>", TransposeKernel<33>},
      {"Float4", Float4Kernel},
      {"Float2", Float2Kernel},
      {"Broadcast", BroadcastKernel},
      {"Matrices<128>", MatricesKernel<128>},
      {"Matrices<144>", MatricesKernel<144>},
      {"Atomic", AtomicKernel},
      {"Product", ProductKernel},
      {"AsyncCopy", AsyncCopyKernel},
      {"OldNormBackward", OldNormBackwardKernel},
  };
  const bool norm = name == "OldNormBackward";
  return LaunchKernel(kernels.at(name), 1, norm ? 128 : 32, norm ? 2 * 768 * sizeof(float) : 0, x,
                      y);
}

}  // namespace lockstep
