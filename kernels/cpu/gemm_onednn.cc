#include "kernels/cpu/gemm_onednn.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/system/instruction_set.h"
#include "kernels/cpu/scratch.h"

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

// oneDNN's packed kernels ("brg") take B in blocks of columns, and A and C whose rows lie next to
// each other; the bits of an element then depend only on its row, its column and k.

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

}  // namespace

void MultiplyByOneDnn(const TiledProduct<BF16>& p, int64_t row, int64_t column, float* c,
                      int64_t ldc, bool accumulate) {
  const SingleThreaded scope;
  static thread_local PanelCache<BF16> panels_a, panels_b;
  static thread_local Scratch<BF16> padded_a;
  static thread_local Scratch<float> scratch_c;
  const int64_t i = row * p.tile.m, j = column * p.tile.n;
  const int64_t m = p.Rows(row), n = p.Columns(column), k = p.k;
  const int64_t block = PackedColumns(n), computed = RowsToCompute(m, n);
  const int64_t rows = DivideUp(p.m, p.tile.m), columns = DivideUp(p.n, p.tile.n);
  const int64_t most = PackedDepth();
  const int64_t deepest = std::min(k, most), slices = DivideUp(k, deepest);
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

}  // namespace lockstep::cpu
