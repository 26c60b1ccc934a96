// A product of matrices on the calling thread: by Eigen in f64, by oneDNN in f32 and bf16. What
// kernels/gemm_cpu.h cuts its products into.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/gemm_cpu.h"

namespace lockstep::cpu {

template <class T>
struct Operand {
  const T* data;
  int64_t ld;
  bool transposed;

  // Element (i, j) of the operand as it enters the product.
  const T* At(int64_t i, int64_t j) const { return data + (transposed ? j * ld + i : i * ld + j); }
};

// Longer sums are split into slices of this length, which are added in order: oneDNN splits longer
// ones differently when A is transposed, and operands would not stay in the cache.
inline constexpr int64_t kMultiplyDepth = 1024;

struct ProductShape {
  int64_t m, n, k;
  int64_t rows;  // m of the whole product, where this is a tile of one
};

// C [m, n] = A B, or C += A B, for A [m, k] and B [k, n]; rows of C are ldc elements apart.
// T is double, float or BF16, which is multiplied as `bf16` says.
template <class T>
void MultiplyTile(const Operand<T>& a, const Operand<T>& b, const ProductShape& shape, Acc<T>* c,
                  int64_t ldc, bool accumulate, GemmArgs::BF16Products bf16);

}  // namespace lockstep::cpu
