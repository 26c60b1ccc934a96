// Counterparts of the warp's matrix instructions, with the PTX manual's fragments (sm_80).
#ifndef CUDASIM_MMA_H_
#define CUDASIM_MMA_H_

#include <cmath>
#include <cstdint>

#include "cudasim/float_formats.h"
#include "cudasim/thread.h"

namespace cudasim {

enum class MmaType { kBf16, kF16 };

// mma.sync.aligned.m16n8k16.row.col.f32.{bf16,f16}.{bf16,f16}.f32: d = a * b + c by the whole warp.
// With group = lane / 4 and t = lane % 4, as pairs of 16-bit numbers, lower column (a) or row (b)
// first:
//   a[0] = A[group][2t, 2t+1]     a[1] = A[group + 8][2t, 2t+1]
//   a[2] = A[group][2t+8, 2t+9]   a[3] = A[group + 8][2t+8, 2t+9]
//   b[0] = B[2t, 2t+1][group]     b[1] = B[2t+8, 2t+9][group]
//   c, d: [0], [1] = C[group][2t], [2t+1]; [2], [3] = C[group + 8][2t], [2t+1]
// Products are exact and added in f32 from k = 0 on, c first; a GPU adds them in another order,
// with other roundings. d may be c.
void MmaM16N8K16(MmaType type, float d[4], const uint32_t a[4], const uint32_t b[2],
                 const float c[4], Where where = Where::current());

// cvt.rna.tf32.f32: 10 bits of mantissa, rounded to nearest, ties away from zero.
inline uint32_t ToTf32(float x) {
  if (std::isnan(x)) return 0x7fffffffu;
  return std::isinf(x) ? FloatBits(x) : (FloatBits(x) + 0x1000) & 0xffffe000u;
}

// mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32, likewise, by numbers instead of pairs:
//   a[0] = A[group][t]   a[1] = A[group + 8][t]   a[2] = A[group][t + 4]   a[3] = A[group + 8][t +
//   4] b[0] = B[t][group]   b[1] = B[t + 4][group]
// The 13 lowest bits of each are ignored.
void MmaM16N8K8(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4],
                Where where = Where::current());

// ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans].shared.b16: `count` 8 x 8 matrices of 16-bit numbers.
// The address of row r of matrix m comes from lane 8m + r, aligned to 16 bytes; result[m] of a lane
// is M[lane / 4][2 (lane % 4), + 1], of the transposed matrix with `transposed`.
void LoadMatrix(int count, bool transposed, uint32_t* result, const void* row,
                Where where = Where::current());

}  // namespace cudasim

#endif  // CUDASIM_MMA_H_
