// A product of matrices on the calling thread: by blocks in registers, or by oneDNN in bf16. What
// kernels/cpu/gemm.h cuts its products into.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "core/dtype.h"
#include "core/round_up.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_pack.h"

namespace lockstep::cpu {

// How much of k is packed at a time: the law's chunk, and for oneDNN, which packs more at a time.
inline constexpr int64_t kChunk = 256, kMultiplyDepth = 4096;

// A product of A [m, k] and B [k, n], which is cut into tiles of one size; those at its ends may be
// smaller. Products are numbered process-wide.
template <class T>
struct TiledProduct {
  uint64_t number;
  Operand<T> a, b;
  int64_t m, n, k;
  internal::GemmTile tile;
  GemmArgs::BF16Products bf16;
  bool symmetric = false;  // what is above the diagonal need not be computed

  int64_t Rows(int64_t row) const { return std::min(tile.m, m - row * tile.m); }
  int64_t Columns(int64_t column) const { return std::min(tile.n, n - column * tile.n); }
};

// Numbers for `count` products, of which this is the first.
uint64_t NumberProducts(int64_t count);

// Whether oneDNN multiplies.
inline bool IsByOneDnn(DType dtype, GemmArgs::BF16Products bf16) {
  return dtype == DType::kBF16 && bf16 == GemmArgs::BF16Products::kByCpu && HasBF16Products();
}

// Whether A, if it is not converted, is multiplied where it lies: unless its columns, read as rows,
// are all in the same sets of a cache.
inline bool IsMultipliedInPlace(bool transposed, int64_t ld, int64_t element) {
  return !transposed || ld * element % 4096 != 0;
}

// What follows when the sums of a part of a tile are done: rows [i, i + m) and columns [j, j + n),
// at most kTilePartColumns.
inline constexpr int64_t kTilePartColumns = 192;
struct TileFinish {
  std::function<void(int64_t i, int64_t m, int64_t j, int64_t n)> run{};  // may be empty
  // What it reads or writes besides, laid out as the tile; may be null.
  const char* beside = nullptr;
  int64_t row_bytes = 0, element_bytes = 0;
};

// C = A B, or C += A B, for one tile of it: C [Rows(row), Columns(column)], whose rows are ldc
// elements apart. T is double, float, F16, or BF16, which is multiplied as `bf16` says.
template <class T>
void MultiplyTile(const TiledProduct<T>& product, int64_t row, int64_t column, Acc<T>* c,
                  int64_t ldc, bool accumulate, const TileFinish& finish);

}  // namespace lockstep::cpu
