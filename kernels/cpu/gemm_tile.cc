#include "kernels/cpu/gemm_tile.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "kernels/cpu/gemm_onednn.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector.h"

namespace lockstep::cpu {
namespace {

// What a block brings into the cache for later, a line in each of its steps: eight that are `near`
// bytes apart, the eight that are `far` bytes after them, and so on. With `far` of half a line each
// is asked for twice, which costs less than to count lines.
struct Prefetch {
  const char* from;
  int64_t near, far;
};

template <class T>
using BlockFunction = void(int64_t depth, const T* a, int64_t lda, int64_t step, const T* b,
                           int64_t ldb, T* c, int64_t ldc, bool add, const Prefetch& ahead);

// The functions for blocks of up to `rows` rows and `columns` columns, in vectors of `lanes`.
template <class T>
struct BlockFunctions {
  int64_t rows, columns, lanes;
  BlockFunction<T>* const* all;

  BlockFunction<T>* For(int64_t m, int64_t vectors) const {
    return all[(vectors - 1) * rows + m - 1];
  }
};

namespace avx2 {
#define LOCKSTEP_GEMM_VECTOR_BYTES 32
#include "kernels/cpu/gemm_block.h"
#undef LOCKSTEP_GEMM_VECTOR_BYTES
}  // namespace avx2

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl")
#endif
namespace avx512 {
#define LOCKSTEP_GEMM_VECTOR_BYTES 64
#include "kernels/cpu/gemm_block.h"
#undef LOCKSTEP_GEMM_VECTOR_BYTES
}  // namespace avx512
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

// A part of A [m, depth]. Blocks begin at multiples of their rows: at row i, data + i * next_row;
// inside, rows and columns are so many elements apart.
template <class A>
struct PartOfA {
  const A* data;
  int64_t next_row, row, column;
};

// A product of a part of A and of B, which is packed, in blocks. C is [m, n]. Row i needs only
// columns up to i + `past`.
template <class A>
void MultiplyBlocks(const BlockFunctions<A>& blocks, int64_t m, int64_t n, int64_t depth,
                    const PartOfA<A>& a, const A* b, A* c, int64_t ldc, bool add, int64_t past,
                    const TileFinish& finish) {
  // So many columns of B stay in the nearest cache while all rows of A pass by.
  const int64_t group = kTilePartColumns / blocks.columns * blocks.columns;
  alignas(64) A part[8 * 48];
  for (int64_t j0 = 0; j0 < n; j0 += group) {
    const int64_t end = std::min(n, j0 + group);
    for (int64_t i = 0; i < m; i += blocks.rows) {
      const int64_t rows = std::min(blocks.rows, m - i);
      const A* const from = a.data + i * a.next_row;
      const A* const next = i + rows < m ? from + rows * a.next_row : from;
      for (int64_t j = j0; j < std::min(end, i + rows + past); j += blocks.columns) {
        const int64_t columns = std::min(blocks.columns, end - j);
        const int64_t vectors = DivideUp(columns, blocks.lanes);
        const int64_t passed = (j - j0) / blocks.columns * depth - depth;
        Prefetch ahead;
        if (finish.beside != nullptr && passed >= 0 && passed < end - j0) {
          ahead = {finish.beside + i * finish.row_bytes + (j0 + passed) * finish.element_bytes,
                   finish.row_bytes, 8 * finish.element_bytes};
        } else {
          // Rows are followed by the next ones; columns, in another order, by the next of them.
          const bool in_rows = a.column == 1;
          const A* const soon = in_rows || j + columns == end ? next : from + 8 * a.column;
          constexpr int64_t kBytes = sizeof(A);
          ahead = {reinterpret_cast<const char*>(soon), (in_rows ? a.row : a.column) * kBytes,
                   8 * a.column * kBytes};
        }
        const auto multiply = [&](A* sums, int64_t ld) {
          blocks.For(rows, vectors)(depth, from, a.row, a.column, b + j * depth, blocks.columns,
                                    sums, ld, add, ahead);
        };
        A* const to = c + i * ldc + j;
        if (columns == vectors * blocks.lanes) {
          multiply(to, ldc);
          continue;
        }
        if (add) CopyRows(to, ldc, rows, columns, part, blocks.columns);
        multiply(part, blocks.columns);
        CopyRows(part, blocks.columns, rows, columns, to, ldc);
      }
      if (finish.run) finish.run(i, rows, j0, end - j0);
    }
  }
}

void FinishAll(int64_t m, int64_t n, const TileFinish& finish) {
  constexpr int64_t kRows = 8;
  for (int64_t i = 0; finish.run && i < m; i += kRows) {
    for (int64_t j = 0; j < n; j += kTilePartColumns) {
      finish.run(i, std::min(kRows, m - i), j, std::min(kTilePartColumns, n - j));
    }
  }
}

template <class T>
void MultiplyChunks(const TiledProduct<T>& p, int64_t row, int64_t column, Acc<T>* c, int64_t ldc,
                    bool accumulate, const TileFinish& finish) {
  using A = Acc<T>;
  static thread_local PanelCache<A> panels_a, panels_b;
  const BlockFunctions<A>& blocks = HasAvx512() ? avx512::kBlocks<A> : avx2::kBlocks<A>;
  const int64_t i = row * p.tile.m, j = column * p.tile.n;
  const int64_t m = p.Rows(row), n = p.Columns(column);
  const int64_t rows = DivideUp(p.m, p.tile.m), columns = DivideUp(p.n, p.tile.n);
  const int64_t chunks = DivideUp(p.k, kChunk), deepest = std::min(p.k, kChunk);
  const int64_t past = p.symmetric ? i - j : p.n;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t at = chunk * kChunk, depth = std::min(kChunk, p.k - at);
    const Operand<T> stored = p.a.From(i, at);
    PartOfA<A> a{};
    bool in_place = false;
    if constexpr (std::is_same_v<T, A>) {
      in_place = IsMultipliedInPlace(stored.transposed, stored.ld, sizeof(T));
      a = {stored.data, 1, 1, stored.ld};
      if (!stored.transposed) a = {stored.data, stored.ld, stored.ld, 1};
    }
    if (!in_place) {
      const auto panel = panels_a.Find(p.number, row * chunks + chunk, rows * chunks,
                                       RoundUp(p.tile.m, blocks.rows) * deepest);
      a = {panel.data, depth, depth, 1};
      if (stored.transposed) a = {panel.data, depth, 1, blocks.rows};
      if (!panel.packed) PackA(stored, m, depth, blocks.rows, panel.data);
    }
    const auto b = panels_b.Find(p.number, column * chunks + chunk, columns * chunks,
                                 PackedSizeB<A>(deepest, p.tile.n, blocks.columns));
    if (!b.packed) PackB(p.b.From(at, j), depth, n, blocks.columns, b.data);
    MultiplyBlocks(blocks, m, n, depth, a, b.data, c, ldc, accumulate || chunk > 0, past,
                   chunk + 1 == chunks ? finish : TileFinish());
  }
}

}  // namespace

uint64_t NumberProducts(int64_t count) {
  static std::atomic<uint64_t> next = 1;
  return next.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
}

template <class T>
void MultiplyTile(const TiledProduct<T>& p, int64_t row, int64_t column, Acc<T>* c, int64_t ldc,
                  bool accumulate, const TileFinish& finish) {
  const int64_t m = p.Rows(row), n = p.Columns(column);
  if constexpr (std::is_same_v<T, BF16>) {
    if (p.k > 0 && IsByOneDnn(DType::kBF16, p.bf16)) {
      MultiplyByOneDnn(p, row, column, c, ldc, accumulate);
      FinishAll(m, n, finish);
      return;
    }
  }
  if (p.k > 0) return MultiplyChunks(p, row, column, c, ldc, accumulate, finish);
  for (int64_t i = 0; i < m && !accumulate; ++i) std::fill_n(c + i * ldc, n, Acc<T>(0));
  FinishAll(m, n, finish);
}

template void MultiplyTile(const TiledProduct<double>&, int64_t, int64_t, double*, int64_t, bool,
                           const TileFinish&);
template void MultiplyTile(const TiledProduct<float>&, int64_t, int64_t, float*, int64_t, bool,
                           const TileFinish&);
template void MultiplyTile(const TiledProduct<BF16>&, int64_t, int64_t, float*, int64_t, bool,
                           const TileFinish&);
template void MultiplyTile(const TiledProduct<F16>&, int64_t, int64_t, float*, int64_t, bool,
                           const TileFinish&);

}  // namespace lockstep::cpu
