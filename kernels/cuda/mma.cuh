// The warp's matrix instructions of sm_80.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace lockstep::cuda {

// d = a * b + c for A[16][16], B[16][8], C and D[16][8], by all 32 lanes of a warp; T is
// __nv_bfloat16 or __half, the sums are f32. With group = lane / 4 and t = lane % 4, a lane holds
// (two numbers per register, lower column of A or row of B in the lower half)
//   a[0] = A[group][2t, 2t+1]     a[1] = A[group + 8][2t, 2t+1]
//   a[2] = A[group][2t+8, 2t+9]   a[3] = A[group + 8][2t+8, 2t+9]
//   b[0] = B[2t, 2t+1][group]     b[1] = B[2t+8, 2t+9][group]
//   c, d: [0], [1] = C[group][2t], [2t+1]; [2], [3] = C[group + 8][2t], [2t+1]
// d may be c.
template <class T>
__device__ inline void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                   const float (&c)[4]) {
  static_assert(std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>);
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
  }
}

// x rounded to TF32, which has 10 bits of mantissa (to nearest, ties away from zero), as an element
// of the fragments below.
__device__ inline uint32_t ToTf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// d = a * b + c for A[16][8] and B[8][8] in TF32, a number per register; C and D as above. With
// group and t as above, a lane holds
//   a[0] = A[group][t]   a[1] = A[group + 8][t]   a[2] = A[group][t + 4]   a[3] = A[group + 8][t +
//   4] b[0] = B[t][group]   b[1] = B[t + 4][group]
__device__ inline void MmaM16N8K8(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                  const float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}

// Loads kCount (1, 2, 4) matrices of 8 x 8 16-bit numbers from shared memory. Lane 8m + r gives the
// address of row r of matrix m, aligned to 16 bytes; result[m] is M[lane / 4][2 (lane % 4), + 1],
// or of M's transpose. All 32 lanes call it; addresses of lanes from 8 kCount on are ignored.
template <int kCount, bool kTransposed = false>
__device__ inline void LoadMatrix(uint32_t (&result)[kCount], const void* row) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4);
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kCount == 1 && !kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(result[0])
                 : "r"(address)
                 : "memory");
  } else if constexpr (kCount == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(result[0])
                 : "r"(address)
                 : "memory");
  } else if constexpr (kCount == 2 && !kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(result[0]), "=r"(result[1])
                 : "r"(address)
                 : "memory");
  } else if constexpr (kCount == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(result[0]), "=r"(result[1])
                 : "r"(address)
                 : "memory");
  } else if constexpr (!kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address)
                 : "memory");
  }
}

}  // namespace lockstep::cuda
