// A product of matrices on the calling thread: by Eigen in f64, by oneDNN in f32 and bf16, in f32
// for f16. What kernels/cpu/gemm.h cuts its products into.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_pack.h"

namespace lockstep::cpu {

// For f32 and bf16, longer sums are split into slices of this length, which are added in order: it
// bounds what is packed at a time.
inline constexpr int64_t kMultiplyDepth = 4096;

// A product of A [m, k] and B [k, n], which is cut into tiles of one size; those at its ends may be
// smaller. Products are numbered process-wide.
template <class T>
struct TiledProduct {
  uint64_t number;
  Operand<T> a, b;
  int64_t m, n, k;
  internal::GemmTile tile;
  GemmArgs::BF16Products bf16;

  int64_t Rows(int64_t row) const { return std::min(tile.m, m - row * tile.m); }
  int64_t Columns(int64_t column) const { return std::min(tile.n, n - column * tile.n); }
};

// Numbers for `count` products, of which this is the first.
uint64_t NumberProducts(int64_t count);

// Whether a product goes to the packed kernels as it is. Packing a transposed f32 B takes longer
// than its product by a few rows, as in generation.
inline bool IsPacked(DType dtype, GemmArgs::BF16Products bf16, int64_t m, bool transpose_b) {
  constexpr int64_t kFewRows = 8;
  if (dtype == DType::kF32) return HasPackedProducts() && !(m < kFewRows && transpose_b);
  return dtype == DType::kBF16 && bf16 == GemmArgs::BF16Products::kByCpu && HasBF16Products();
}

// C = A B, or C += A B, for one tile of it: C [Rows(row), Columns(column)], whose rows are ldc
// elements apart. T is double, float, F16, or BF16, which is multiplied as `bf16` says.
template <class T>
void MultiplyTile(const TiledProduct<T>& product, int64_t row, int64_t column, Acc<T>* c,
                  int64_t ldc, bool accumulate);

}  // namespace lockstep::cpu
