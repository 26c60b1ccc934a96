#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/thread_pool.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"

namespace lockstep::cpu {
namespace {

using internal::GemmTile;

// ---- A tile of the arguments' product, with what follows it. ----

// A row of a finished part of a tile gets bias and GELU, or GELU's derivative, and goes to C. The
// sums are in C already if A is C's type (and a separate pointer to them would keep compilers from
// vectorising).
template <class A, class C>
void FinishRow(const GemmArgs& g, const A* sums, int64_t n, const A* bias, C* c, C* pre,
               const C* gelu_input) {
  const auto sum = [=](int64_t j) {
    if constexpr (std::is_same_v<A, C>) {
      return c[j];
    } else {
      return sums[j];
    }
  };
  const auto finish = [=, &g](const auto& biased) {
    if (!g.gelu) {
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) c[j] = Convert<C>(biased(j));
    } else if (pre == nullptr) {
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) c[j] = Convert<C>(Gelu(biased(j)));
    } else {
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) {
        const A z = biased(j);
        pre[j] = Convert<C>(z);
        c[j] = Convert<C>(Gelu(z));
      }
    }
  };
  if (g.accumulate) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) c[j] = Convert<C>(Convert<A>(c[j]) + sums[j]);
  } else if (gelu_input != nullptr) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      c[j] = Convert<C>(sum(j) * GeluDerivative(Convert<A>(gelu_input[j])));
    }
  } else if (bias == nullptr) {
    finish(sum);
  } else {
    finish([=](int64_t j) { return sum(j) + bias[j]; });
  }
}

// Product number `batch` of the arguments'.
template <class T>
TiledProduct<T> ProductOf(const GemmArgs& g, GemmTile tile, uint64_t number, int64_t batch) {
  return {number + static_cast<uint64_t>(batch),
          {static_cast<const T*>(g.a) + batch * g.stride_a, g.lda, g.transpose_a},
          {static_cast<const T*>(g.b) + batch * g.stride_b, g.ldb, g.transpose_b},
          g.m,
          g.n,
          g.k,
          tile,
          g.bf16,
          g.symmetric};
}

template <class T, class C>
void RunTile(const GemmArgs& g, const TiledProduct<T>& product, int64_t batch, int64_t row,
             int64_t column) {
  using A = Acc<T>;
  const int64_t m = product.Rows(row), n = product.Columns(column);
  const int64_t j0 = column * product.tile.n;
  const int64_t at = batch * g.stride_c + row * product.tile.m * g.ldc + j0;
  C* c = static_cast<C*>(g.c) + at;
  C* pre = g.pre_activation == nullptr ? nullptr : static_cast<C*>(g.pre_activation) + at;
  const C* gelu_input =
      g.gelu_input == nullptr ? nullptr : static_cast<const C*>(g.gelu_input) + at;

  constexpr bool direct = std::is_same_v<A, C>;
  static thread_local Scratch<A> scratch;
  A* sums;
  int64_t ld = n;
  if constexpr (direct) {
    sums = c;
    ld = g.ldc;
  } else {
    sums = scratch.Get(m * n);
  }
  const auto finish = [&](int64_t i0, int64_t rows, int64_t j, int64_t columns) {
    Vectorised([=, &g] {
      A bias[kTilePartColumns];
      if (g.bias != nullptr) {
        const C* const stored = static_cast<const C*>(g.bias) + j0 + j;
        for (int64_t l = 0; l < columns; ++l) bias[l] = Convert<A>(stored[l]);
      }
      for (int64_t i = i0; i < i0 + rows; ++i) {
        const int64_t at = i * g.ldc + j;
        FinishRow(g, sums + i * ld + j, columns, g.bias == nullptr ? nullptr : bias, c + at,
                  pre == nullptr ? pre : pre + at,
                  gelu_input == nullptr ? gelu_input : gelu_input + at);
      }
    });
  };
  const bool plain = g.accumulate || (g.bias == nullptr && !g.gelu && gelu_input == nullptr);
  TileFinish after;
  if (!direct || !plain) {
    after = {std::ref(finish), reinterpret_cast<const char*>(pre != nullptr ? pre : gelu_input),
             g.ldc * int64_t{sizeof(C)}, sizeof(C)};
  }
  MultiplyTile(product, row, column, sums, ld, direct && g.accumulate, after);
}

void Check(const GemmArgs& g) {
  LS_INVARIANT(g.m >= 0 && g.n >= 0 && g.k >= 0 && g.batch >= 0);
  LS_INVARIANT(g.lda >= (g.transpose_a ? g.m : g.k) && g.ldb >= (g.transpose_b ? g.k : g.n) &&
               g.ldc >= g.n);
  LS_INVARIANT(!g.accumulate || (g.bias == nullptr && !g.gelu));
  LS_INVARIANT(g.gelu_input == nullptr || (g.bias == nullptr && !g.gelu && !g.accumulate));
  LS_INVARIANT(!g.symmetric || (g.m == g.n && !g.accumulate && g.bias == nullptr && !g.gelu &&
                                g.gelu_input == nullptr));
}

// Copies what is below the diagonals of C to above them.
template <class C>
void Mirror(const GemmArgs& g) {
  constexpr int64_t kBlock = 32;
  const int64_t blocks = DivideUp(g.m, kBlock);
  ParallelForEach(g.batch * blocks, 1, [&](int64_t at) {
    C* const c = static_cast<C*>(g.c) + at / blocks * g.stride_c;
    const int64_t first = at % blocks * kBlock, end = std::min(g.m, first + kBlock);
    for (int64_t column = first; column < g.n; column += kBlock) {
      for (int64_t i = first; i < end; ++i) {
        for (int64_t j = std::max(i + 1, column); j < std::min(g.n, column + kBlock); ++j) {
          c[i * g.ldc + j] = c[j * g.ldc + i];
        }
      }
    }
  });
}

// Whether A is packed, rather than multiplied where it lies.
bool PacksA(bool transpose_a, int64_t lda, int64_t k, int64_t element, bool by_onednn) {
  if (by_onednn) return transpose_a || k > kMultiplyDepth;
  return element == 2 || !IsMultipliedInPlace(transpose_a, lda, element);
}

// Whether neighbouring tiles share rows of A rather than columns of B: where A is packed, and
// threads keep all of B, which has `bytes_of_b` bytes.
bool ColumnsFirst(bool pack_a, bool transpose_a, int64_t bytes_of_b) {
  return pack_a && transpose_a && bytes_of_b <= kPanelCacheBytes;
}

}  // namespace

// The tile that takes the least time, by a model in units of one multiplication: the products;
// packing the panels that a thread does not find in its caches; results beyond the cache; and a
// constant. Constants were fitted to measurements; they are integers, so that every build makes the
// same choice.
GemmTile internal::ChooseGemmTile(bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                                  int64_t k, int64_t lda, int64_t batch, int64_t element,
                                  bool by_onednn, int threads) {
  constexpr int64_t kTileM[] = {24, 48, 96, 144, 192, 288, 384, 576};
  constexpr int64_t kTileN[] = {96, 192, 288, 384, 480, 768, 960, 4096};
  constexpr int64_t kNearElements = 128 << 10;
  const int64_t depth = std::min(k, by_onednn ? kMultiplyDepth : kChunk);
  const int64_t kept = kPanelCacheBytes / element;
  constexpr int64_t kFarElements = 4 << 20;
  const bool pack_a = PacksA(transpose_a, lda, k, element, by_onednn);
  // The gradient of a weight by oneDNN: its products take so little time that whole rows, which
  // need no copy, are worth tiles of any width.
  const bool prefer_whole_rows = transpose_a && by_onednn;
  const bool short_blocks = !by_onednn && HasAvx512();  // 8 x 48
  const int64_t copy_cost = !by_onednn ? 0 : prefer_whole_rows ? 48 : 12;
  const bool columns_first = ColumnsFirst(pack_a, transpose_a, n * k * element);
  // Per element: read from beyond all caches, or not.
  const auto pack_cost = [&](int64_t size, bool transposed) {
    return size * k > kFarElements ? 40 : transposed ? 14 : 8;
  };
  const int64_t a_element = pack_cost(m, transpose_a), b_element = pack_cost(n, transpose_b);
  const auto even = [&](int64_t size, int64_t tile, int64_t unit) {
    const int64_t parts = DivideUp(size, tile), part = DivideUp(size, parts);
    return parts == 1 ? part : RoundUp(part, unit);
  };
  GemmTile best{m, n};
  int64_t best_time = std::numeric_limits<int64_t>::max();
  for (int64_t try_m : kTileM) {
    const int64_t tm = even(m, try_m, short_blocks ? 8 : 24), rows = DivideUp(m, tm);
    if (pack_a && tm * depth > kept) continue;
    for (int64_t try_n : kTileN) {
      const int64_t tn = even(n, try_n, by_onednn ? 48 : 16), columns = DivideUp(n, tn);
      if (tn * depth > 2 * kept || (tn > 1024 && !prefer_whole_rows)) continue;
      // Each row of B goes through the registers once per few rows of A, and at least once; the
      // last columns, by fewer vectors at a time.
      const int64_t ragged = short_blocks && tn % 48 != 0 ? 16 : 0;
      int64_t tile = k * (tm + 4) * (RoundUp(tn, 16) + ragged) + 100'000;
      if (tn < n) tile += copy_cost * tm * tn;
      if (tm * tn > kNearElements) tile += tile / 10;
      const int64_t rounds = DivideUp(rows * columns * batch, threads);
      // The number of panels that a thread packs: tiles with the same panel pack it once.
      const auto packed = [&](int64_t parts, int64_t others, int64_t size) {
        return size * k > kept
                   ? rounds
                   : std::min(rounds, DivideUp(parts * batch * std::min<int64_t>(others, threads),
                                               threads));
      };
      const int64_t wake = rows * columns * batch > 1 ? 200'000 : 0;
      int64_t time = rounds * tile + wake + packed(columns, rows, tn) * tn * k * b_element;
      if (pack_a) time += packed(rows, columns, columns_first ? tm : m) * tm * k * a_element;
      if (time < best_time) {
        best_time = time;
        best = {tm, tn};
      }
    }
  }
  return best;
}

namespace {

// ChooseGemmTile, remembered for the shapes that the calling thread used last: it takes a
// microsecond, as long as a small product.
GemmTile TileOf(const GemmArgs& g) {
  struct Entry {
    std::array<int64_t, 10> shape{-1};
    GemmTile tile{};
  };
  static thread_local std::array<Entry, 64> entries;
  const bool by_onednn = IsByOneDnn(g.dtype, g.bf16);
  const std::array<int64_t, 10> shape = {g.m,       g.n,           g.k,           g.lda,
                                         g.batch,   g.transpose_a, g.transpose_b, SizeOf(g.dtype),
                                         by_onednn, NumThreads()};
  uint64_t key = 0;
  for (const int64_t x : shape) key = key * 0x10001 + static_cast<uint64_t>(x);
  Entry& e = entries[key * 0x9E3779B97F4A7C15ull >> 58];
  if (e.shape != shape) {
    e = {shape, internal::ChooseGemmTile(g.transpose_a, g.transpose_b, g.m, g.n, g.k, g.lda,
                                         g.batch, SizeOf(g.dtype), by_onednn, NumThreads())};
  }
  return e.tile;
}

}  // namespace

void Gemm(const GemmArgs& g) { Gemm(std::span(&g, 1)); }

void Gemm(std::span<const GemmArgs> products) {
  struct Tiles {
    GemmTile tile{};
    int64_t rows = 0, columns = 0, end = 0;  // tiles up to `end`: this product's or earlier
    uint64_t number = 0;
    bool columns_first = false;  // neighbouring tiles share rows of A
  };
  std::vector<Tiles> tiles(products.size());
  int64_t total = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const GemmArgs& g = products[i];
    Check(g);
    if (g.m > 0 && g.n > 0 && g.batch > 0) {
      const GemmTile tile = TileOf(g);
      const int64_t rows = DivideUp(g.m, tile.m), columns = DivideUp(g.n, tile.n);
      const int64_t element = SizeOf(g.dtype);
      const bool pack_a = PacksA(g.transpose_a, g.lda, g.k, element, IsByOneDnn(g.dtype, g.bf16));
      const bool columns_first = ColumnsFirst(pack_a, g.transpose_a, g.n * g.k * element);
      total += g.batch * rows * columns;
      tiles[i] = {tile, rows, columns, 0, NumberProducts(g.batch), columns_first};
    }
    tiles[i].end = total;
  }
  ParallelForEach(total, 1, [&](int64_t at) {
    const size_t i =
        static_cast<size_t>(std::ranges::upper_bound(tiles, at, {}, &Tiles::end) - tiles.begin());
    const GemmArgs& g = products[i];
    const Tiles& all = tiles[i];
    const int64_t rows = all.rows, columns = all.columns;
    const int64_t index = at - (all.end - g.batch * rows * columns);
    const int64_t batch = index / (rows * columns), place = index % (rows * columns);
    const int64_t row = all.columns_first ? place / columns : place % rows;
    const int64_t column = all.columns_first ? place % columns : place / rows;
    if (g.symmetric && column * all.tile.n >= (row + 1) * all.tile.m) return;
    DispatchFloat("gemm", g.dtype, [&]<class T>(TypeTag<T>) {
      DispatchFloat("gemm", g.c_dtype, [&]<class C>(TypeTag<C>) {
        RunTile<T, C>(g, ProductOf<T>(g, all.tile, all.number, batch), batch, row, column);
      });
    });
  });
  for (const GemmArgs& g : products) {
    if (!g.symmetric) continue;
    DispatchFloat("gemm", g.c_dtype, [&]<class C>(TypeTag<C>) { Mirror<C>(g); });
  }
}

}  // namespace lockstep::cpu
