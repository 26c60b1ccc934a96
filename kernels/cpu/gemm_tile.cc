#include "kernels/cpu/gemm_tile.h"

#include <immintrin.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/system/instruction_set.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector.h"

#if defined(__SANITIZE_THREAD__)
// oneDNN is not compiled with ThreadSanitizer, which therefore does not see what orders accesses to
// its primitive caches.
extern "C" const char* __tsan_default_suppressions() { return "race:libdnnl.so\n"; }
#endif

namespace lockstep::cpu {
namespace {

// oneDNN on one thread, for the scope. The thread's own setting is restored: programs that embed
// Lockstep may use OpenMP themselves.
class SingleThreaded {
 public:
  SingleThreaded() : previous_(omp_get_max_threads()) {
    if (previous_ != 1) omp_set_num_threads(1);
  }
  ~SingleThreaded() {
    if (previous_ != 1) omp_set_num_threads(previous_);
  }
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  int previous_;
};

template <class T>
void CopyRows(const T* from, int64_t from_ld, int64_t rows, int64_t columns, T* to, int64_t to_ld) {
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(from + i * from_ld, columns, to + i * to_ld);
  }
}

constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- Blocks in registers: the law of kernels/cpu/gemm.h. ----

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

// A product of a part of A and of B, which is packed, in blocks. C is [m, n].
template <class A>
void MultiplyBlocks(const BlockFunctions<A>& blocks, int64_t m, int64_t n, int64_t depth,
                    const PartOfA<A>& a, const A* b, A* c, int64_t ldc, bool add,
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
      for (int64_t j = j0; j < end; j += blocks.columns) {
        const int64_t columns = std::min(blocks.columns, end - j);
        const int64_t vectors = CeilDivide(columns, blocks.lanes);
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
  const int64_t rows = CeilDivide(p.m, p.tile.m), columns = CeilDivide(p.n, p.tile.n);
  const int64_t chunks = CeilDivide(p.k, kChunk), deepest = std::min(p.k, kChunk);
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
                                       CeilDivide(p.tile.m, blocks.rows) * blocks.rows * deepest);
      a = {panel.data, depth, depth, 1};
      if (stored.transposed) a = {panel.data, depth, 1, blocks.rows};
      if (!panel.packed) PackA(stored, m, depth, blocks.rows, panel.data);
    }
    const auto b = panels_b.Find(p.number, column * chunks + chunk, columns * chunks,
                                 PackedSizeB<A>(deepest, p.tile.n, blocks.columns));
    if (!b.packed) PackB(p.b.From(at, j), depth, n, blocks.columns, b.data);
    MultiplyBlocks(blocks, m, n, depth, a, b.data, c, ldc, accumulate || chunk > 0,
                   chunk + 1 == chunks ? finish : TileFinish());
  }
}

// ---- bf16 by oneDNN. ----
//
// Its packed kernels ("brg") take B in blocks of columns, and A and C whose rows lie next to each
// other; the bits of an element then depend only on its row, its column and k.

// The instruction set that oneDNN uses, limited to ours before its first use.
dnnl::cpu_isa OneDnnIsa() {
  static const dnnl::cpu_isa isa = [] {
    using enum InstructionSet;
    const InstructionSet used = UsedInstructionSet();
    const dnnl::status status =
        dnnl::set_max_cpu_isa(used == kAvx2         ? dnnl::cpu_isa::avx2
                              : used == kAvx512     ? dnnl::cpu_isa::avx512_core_vnni
                              : used == kAvx512Bf16 ? dnnl::cpu_isa::avx512_core_bf16
                                                    : dnnl::cpu_isa::avx512_core_amx);
    if (status != dnnl::status::success && used != CpuInstructionSet()) {
      throw InputError(StrCat("LOCKSTEP_MAX_CPU_ISA=", ToString(used),
                              " comes too late: this program used oneDNN before it multiplied "
                              "with Lockstep; leave the limit out, or let Lockstep be first"));
    }
    return dnnl::get_effective_cpu_isa();
  }();
  return isa;
}

dnnl::engine& Engine() {
  // Never destroyed: the primitives of other threads may outlive static objects.
  static dnnl::engine& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// A product of packed operands.
struct MatmulKey {
  int64_t m, n, k;
  bool accumulate;
  bool operator==(const MatmulKey&) const = default;
};

dnnl::memory::format_tag PackedTag(const MatmulKey& key) {
  using Tag = dnnl::memory::format_tag;
  switch (PackedColumns(key.n)) {
    case 16:
      return Tag::BA16a16b2a;
    case 32:
      return Tag::BA16a32b2a;
    case 48:
      return Tag::BA16a48b2a;
    default:
      return Tag::BA16a64b2a;
  }
}

// A matmul of bf16 into f32 with its descriptors, ready to run on any pointers.
struct Matmul {
  MatmulKey key;
  uint64_t last_use = 0;
  dnnl::matmul primitive;
  dnnl::memory a, b, c, scratchpad;

  explicit Matmul(const MatmulKey& k) : key(k) {
    using Memory = dnnl::memory;
    constexpr auto kType = Memory::data_type::bf16;
    const Memory::desc da({k.m, k.k}, kType, Memory::dims{k.k, 1});
    const Memory::desc db({k.k, k.n}, kType, PackedTag(k));
    const Memory::desc dc({k.m, k.n}, Memory::data_type::f32, Memory::dims{k.n, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (k.accumulate) {
      dnnl::post_ops post;
      post.append_sum(1.0f);
      attributes.set_post_ops(post);
    }
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(da, db, dc), attributes,
                                                   Engine());
    LS_INVARIANT(std::string_view(description.impl_info_str()).starts_with("brg"),
                 "oneDNN multiplies m = ", k.m, ", n = ", k.n, ", k = ", k.k, " by ",
                 description.impl_info_str(), ", which may move the stack pointer");
    primitive = dnnl::matmul(description);
    a = Memory(da, Engine(), nullptr);
    b = Memory(db, Engine(), nullptr);
    c = Memory(dc, Engine(), nullptr);
    scratchpad = Memory(description.scratchpad_desc(), Engine(), nullptr);
  }
};

// The calling thread's primitives: at most kCapacity; the least recently used makes room.
Matmul& CachedMatmul(const MatmulKey& key) {
  constexpr size_t kCapacity = 128;
  static thread_local std::vector<std::unique_ptr<Matmul>> cache;
  static thread_local uint64_t clock = 0;
  Matmul* oldest = nullptr;
  size_t oldest_at = 0;
  for (size_t i = 0; i < cache.size(); ++i) {
    if (cache[i]->key == key) {
      cache[i]->last_use = ++clock;
      return *cache[i];
    }
    if (oldest == nullptr || cache[i]->last_use < oldest->last_use) {
      oldest = cache[i].get();
      oldest_at = i;
    }
  }
  auto made = std::make_unique<Matmul>(key);
  made->last_use = ++clock;
  if (cache.size() < kCapacity) {
    cache.push_back(std::move(made));
    return *cache.back();
  }
  cache[oldest_at] = std::move(made);
  return *cache[oldest_at];
}

void RunMatmul(const MatmulKey& key, const void* a, const void* b, float* c) {
  static thread_local dnnl::stream stream(Engine());
  static thread_local Scratch<char> scratchpad;
  Matmul& matmul = CachedMatmul(key);
  matmul.a.set_data_handle(const_cast<void*>(a));
  matmul.b.set_data_handle(const_cast<void*>(b));
  matmul.c.set_data_handle(c);
  matmul.scratchpad.set_data_handle(
      scratchpad.Get(static_cast<int64_t>(matmul.scratchpad.get_desc().get_size())));
  // The C interface: the C++ one builds a map for each call.
  const std::array<dnnl_exec_arg_t, 4> args{{{DNNL_ARG_SRC, matmul.a.get()},
                                             {DNNL_ARG_WEIGHTS, matmul.b.get()},
                                             {DNNL_ARG_DST, matmul.c.get()},
                                             {DNNL_ARG_SCRATCHPAD, matmul.scratchpad.get()}}};
  const dnnl_status_t status =
      dnnl_primitive_execute(matmul.primitive.get(), stream.get(), args.size(), args.data());
  LS_INVARIANT(status == dnnl_success, "oneDNN's matmul of m = ", key.m, ", n = ", key.n,
               ", k = ", key.k, " returned status ", status);
}

std::atomic<bool> bf16_products_allowed = true;

bool HasAmx() { return OneDnnIsa() == dnnl::cpu_isa::avx512_core_amx; }

// With AMX, oneDNN 2.6 splits longer sums of bf16 by the whole shape, so that its size would change
// their bits, and some of its kernels for them are illegal instructions.
int64_t PackedDepth() { return HasAmx() ? 512 : kMultiplyDepth; }

// The rows with which a product of m rows and n columns is computed. With AMX, oneDNN leaves bf16
// results of one row, or of up to 32 rows and 256 elements, to kernels that round otherwise: such a
// product gets rows of zeros, so that its size does not change its bits. (Sums of up to 16 products
// go to these kernels at every size.)
int64_t RowsToCompute(int64_t m, int64_t n) {
  constexpr int64_t kSmallRows = 32, kSmallElements = 256;
  if (!HasAmx()) return m;
  if (m <= kSmallRows && m * n <= kSmallElements) return kSmallRows + 1;
  return std::max<int64_t>(m, 2);
}

// How many of `rows` rows oneDNN multiplies at a time. Where bf16 results go straight to memory, it
// takes up to twice as long for 128 rows as for two times 64. The last strip is no smaller than the
// others, so that RowsToCompute holds for each.
int64_t StripRows(int64_t rows, bool in_place) {
  constexpr int64_t kStrip = 64;
  return in_place && rows >= 2 * kStrip ? kStrip : rows;
}

void MultiplyByOneDnn(const TiledProduct<BF16>& p, int64_t row, int64_t column, float* c,
                      int64_t ldc, bool accumulate) {
  const SingleThreaded scope;
  static thread_local PanelCache<BF16> panels_a, panels_b;
  static thread_local Scratch<BF16> padded_a;
  static thread_local Scratch<float> scratch_c;
  const int64_t i = row * p.tile.m, j = column * p.tile.n;
  const int64_t m = p.Rows(row), n = p.Columns(column), k = p.k;
  const int64_t block = PackedColumns(n), computed = RowsToCompute(m, n);
  const int64_t rows = CeilDivide(p.m, p.tile.m), columns = CeilDivide(p.n, p.tile.n);
  const int64_t most = PackedDepth();
  const int64_t deepest = std::min(k, most), slices = CeilDivide(k, deepest);
  const bool in_place = (ldc == n || m == 1) && computed == m;
  float* const sums = in_place ? c : scratch_c.Get(computed * n);
  if (!in_place && accumulate) CopyRows(c, ldc, m, n, sums, n);
  for (int64_t slice = 0; slice < slices; ++slice) {
    const int64_t at = slice * most, depth = std::min(most, k - at);
    const BF16* a = p.a.At(i, at);
    if (computed > m) {
      BF16* const padded = padded_a.Get(computed * depth);
      PackPairs(p.a.From(i, at), m, depth, padded);
      std::fill_n(padded + m * depth, (computed - m) * depth, BF16(0));
      a = padded;
    } else if (p.a.transposed || (p.a.ld != depth && m > 1)) {
      const auto panel =
          panels_a.Find(p.number, row * slices + slice, rows * slices, p.tile.m * deepest);
      if (!panel.packed) PackPairs(p.a.From(i, at), m, depth, panel.data);
      a = panel.data;
    }
    const auto b = panels_b.Find(p.number, column * slices + slice, columns * slices,
                                 PackedSizeB<BF16>(deepest, p.tile.n, PackedColumns(p.tile.n)));
    if (!b.packed) PackB(p.b.From(at, j), depth, n, block, b.data);
    for (int64_t at_row = 0, strip; at_row < computed; at_row += strip) {
      strip = StripRows(computed - at_row, in_place);
      RunMatmul({strip, n, depth, accumulate || slice > 0}, a + at_row * depth, b.data,
                sums + at_row * n);
    }
  }
  if (!in_place) CopyRows(sums, n, m, n, c, ldc);
}

}  // namespace

uint64_t NumberProducts(int64_t count) {
  static std::atomic<uint64_t> next = 1;
  return next.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
}

bool HasBF16Products() {
  return bf16_products_allowed && (HasAmx() || OneDnnIsa() == dnnl::cpu_isa::avx512_core_bf16);
}

void AllowBF16Products(bool allow) { bf16_products_allowed = allow; }

std::string DescribeProducts(DType dtype) {
  if (dtype != DType::kBF16 || !HasBF16Products()) return "f32 law 1";
  const dnnl_version_t& version = *dnnl_version();
  return StrCat("oneDNN ", version.major, ".", version.minor, ".", version.patch, " on ",
                ToString(UsedInstructionSet()));
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
