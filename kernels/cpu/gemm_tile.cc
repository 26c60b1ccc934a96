#include "kernels/cpu/gemm_tile.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <signal.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/system/instruction_set.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"

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

void MultiplyF64(const Operand<double>& a, const Operand<double>& b, int64_t m, int64_t n,
                 int64_t k, double* c, int64_t ldc, bool accumulate) {
  if (m + n + k < 24 || m == 1 || n == 1) {  // where Eigen's order depends on alignment
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = accumulate ? c[i * ldc + j] : 0;
        for (int64_t l = 0; l < k; ++l) sum += *a.At(i, l) * *b.At(l, j);
        c[i * ldc + j] = sum;
      }
    }
    return;
  }
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using In = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;
  const In ma(a.data, a.transposed ? k : m, a.transposed ? m : k, Eigen::OuterStride<>(a.ld));
  const In mb(b.data, b.transposed ? n : k, b.transposed ? k : n, Eigen::OuterStride<>(b.ld));
  Eigen::Map<Matrix, 0, Eigen::OuterStride<>> mc(c, m, n, Eigen::OuterStride<>(ldc));
  if (!accumulate) mc.setZero();
  if (a.transposed && b.transposed) {
    mc.noalias() += ma.transpose() * mb.transpose();
  } else if (a.transposed) {
    mc.noalias() += ma.transpose() * mb;
  } else if (b.transposed) {
    mc.noalias() += ma * mb.transpose();
  } else {
    mc.noalias() += ma * mb;
  }
}

// ---- f32 and bf16 by oneDNN. ----
//
// oneDNN has two kinds of kernels. The packed ones ("brg", with AVX-512) take B in blocks of
// columns, and A and C whose rows lie next to each other; the bits of an element then depend only
// on its row, its column and k. The older ones ("gemm:jit") take any leading dimension, but split
// sums by the whole shape, and run with the stack pointer in heap memory.

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

// Delays the thread's signals for the scope, except those that it causes itself. During "gemm:jit"
// the kernel would write a signal's frame into the heap, over whatever lies below the stack
// pointer.
class SignalsDelayed {
 public:
  SignalsDelayed() {
    static const sigset_t asynchronous = [] {
      sigset_t set;
      sigfillset(&set);
      for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
        sigdelset(&set, own);
      }
      return set;
    }();
    pthread_sigmask(SIG_BLOCK, &asynchronous, &previous_);
  }
  ~SignalsDelayed() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  SignalsDelayed(const SignalsDelayed&) = delete;
  SignalsDelayed& operator=(const SignalsDelayed&) = delete;

 private:
  sigset_t previous_;
};

// A product of packed operands.
struct MatmulKey {
  dnnl::memory::data_type type;  // of A and B
  int64_t m, n, k;
  bool accumulate;
  bool operator==(const MatmulKey&) const = default;
};

dnnl::memory::format_tag PackedTag(const MatmulKey& key) {
  using Tag = dnnl::memory::format_tag;
  const bool f32 = key.type == dnnl::memory::data_type::f32;
  switch (PackedColumns(key.n)) {
    case 16:
      return f32 ? Tag::BA16a16b : Tag::BA16a16b2a;
    case 32:
      return f32 ? Tag::BA16a32b : Tag::BA16a32b2a;
    case 48:
      return f32 ? Tag::BA16a48b : Tag::BA16a48b2a;
    default:
      return f32 ? Tag::BA16a64b : Tag::BA16a64b2a;
  }
}

// A matmul into f32 with its descriptors, ready to run on any pointers.
struct Matmul {
  MatmulKey key;
  uint64_t last_use = 0;
  dnnl::matmul primitive;
  dnnl::memory a, b, c, scratchpad;

  explicit Matmul(const MatmulKey& k) : key(k) {
    using Memory = dnnl::memory;
    const Memory::desc da({k.m, k.k}, k.type, Memory::dims{k.k, 1});
    const Memory::desc db({k.k, k.n}, k.type, PackedTag(k));
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

bool HasAmx() { return OneDnnIsa() == dnnl::cpu_isa::avx512_core_amx; }

// With AMX, oneDNN 2.6 splits longer sums of bf16 by the whole shape, so that its size would change
// their bits, and some of its kernels for them are illegal instructions.
template <class T>
int64_t PackedDepth() {
  return std::is_same_v<T, BF16> && HasAmx() ? 512 : kMultiplyDepth;
}

// The rows with which a product of m rows and n columns is computed. With AMX, oneDNN leaves bf16
// results of one row, or of up to 32 rows and 256 elements, to kernels that round otherwise: such a
// product gets rows of zeros, so that its size does not change its bits. (Sums of up to 16 products
// go to these kernels at every size.)
int64_t RowsToCompute(dnnl::memory::data_type type, int64_t m, int64_t n) {
  constexpr int64_t kSmallRows = 32, kSmallElements = 256;
  if (!HasAmx() || type != dnnl::memory::data_type::bf16) return m;
  if (m <= kSmallRows && m * n <= kSmallElements) return kSmallRows + 1;
  return std::max<int64_t>(m, 2);
}

// How many of `rows` rows oneDNN multiplies at a time. Where bf16 results go straight to memory, it
// takes up to twice as long for 128 rows as for two times 64. The last strip is no smaller than the
// others, so that RowsToCompute holds for each.
template <class T>
int64_t StripRows(int64_t rows, bool in_place) {
  constexpr int64_t kStrip = 64;
  return std::is_same_v<T, BF16> && in_place && rows >= 2 * kStrip ? kStrip : rows;
}

constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
void CopyRows(const T* from, int64_t from_ld, int64_t rows, int64_t columns, T* to, int64_t to_ld) {
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(from + i * from_ld, columns, to + i * to_ld);
  }
}

template <class T>
void MultiplyPacked(const TiledProduct<T>& p, int64_t row, int64_t column, float* c, int64_t ldc,
                    bool accumulate) {
  constexpr auto kType =
      std::is_same_v<T, float> ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  static thread_local PanelCache<T> panels_a, panels_b;
  static thread_local Scratch<T> padded_a;
  static thread_local Scratch<float> scratch_c;
  const int64_t i = row * p.tile.m, j = column * p.tile.n;
  const int64_t m = p.Rows(row), n = p.Columns(column), k = p.k;
  const int64_t computed = RowsToCompute(kType, m, n);
  const int64_t rows = CeilDivide(p.m, p.tile.m), columns = CeilDivide(p.n, p.tile.n);
  const int64_t most = PackedDepth<T>();
  const int64_t deepest = std::min(k, most), slices = CeilDivide(k, deepest);
  const bool in_place = (ldc == n || m == 1) && computed == m;
  float* const sums = in_place ? c : scratch_c.Get(computed * n);
  if (!in_place && accumulate) CopyRows(c, ldc, m, n, sums, n);
  for (int64_t slice = 0; slice < slices; ++slice) {
    const int64_t at = slice * most, depth = std::min(most, k - at);
    const T* a = p.a.At(i, at);
    if (computed > m) {
      T* const padded = padded_a.Get(computed * depth);
      PackA(p.a.From(i, at), m, depth, padded);
      std::fill_n(padded + m * depth, (computed - m) * depth, T(0));
      a = padded;
    } else if (p.a.transposed || (p.a.ld != depth && m > 1)) {
      const auto panel =
          panels_a.Find(p.number, row * slices + slice, rows * slices, p.tile.m * deepest);
      if (!panel.packed) PackA(p.a.From(i, at), m, depth, panel.data);
      a = panel.data;
    }
    const auto b = panels_b.Find(p.number, column * slices + slice, columns * slices,
                                 PackedSizeB(deepest, p.tile.n));
    if (!b.packed) PackB(p.b.From(at, j), depth, n, b.data);
    for (int64_t at_row = 0, strip; at_row < computed; at_row += strip) {
      strip = StripRows<T>(computed - at_row, in_place);
      RunMatmul({kType, strip, n, depth, accumulate || slice > 0}, a + at_row * depth, b.data,
                sums + at_row * n);
    }
  }
  if (!in_place) CopyRows(sums, n, m, n, c, ldc);
}

void MultiplyF32(const TiledProduct<float>& p, int64_t row, int64_t column, float* c, int64_t ldc,
                 bool accumulate) {
  if (IsPacked(DType::kF32, p.bf16, p.m, p.b.transposed)) {
    MultiplyPacked(p, row, column, c, ldc, accumulate);
    return;
  }
  const int64_t m = p.Rows(row), n = p.Columns(column);
  const Operand<float> a = p.a.From(row * p.tile.m, 0), b = p.b.From(0, column * p.tile.n);
  const SignalsDelayed scope;
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, p.k, 1.0f, a.data, a.ld,
                 b.data, b.ld, accumulate ? 1.0f : 0.0f, c, ldc);
  LS_INVARIANT(status == dnnl_success, "oneDNN's sgemm of m = ", m, ", n = ", n, ", k = ", p.k,
               " returned status ", status);
}

// Rows of `from` into f32, dense.
template <class T>
void WidenRows(const T* from, int64_t rows, int64_t columns, int64_t ld, float* to) {
  Vectorised([=] {
    for (int64_t i = 0; i < rows; ++i) {
      const T* in = from + i * ld;
      float* out = to + i * columns;
      for (int64_t j = 0; j < columns; ++j) out[j] = static_cast<float>(in[j]);
    }
  });
}

// bf16 or f16 through f32: exact, as each of them is a float.
template <class T>
void MultiplyConverted(const TiledProduct<T>& p, int64_t row, int64_t column, float* c, int64_t ldc,
                       bool accumulate) {
  static thread_local Scratch<float> scratch_a, scratch_b;
  const int64_t m = p.Rows(row), n = p.Columns(column);
  for (int64_t at = 0; at < p.k; at += kMultiplyDepth) {
    const int64_t depth = std::min(kMultiplyDepth, p.k - at);
    const Operand<T> a = p.a.From(row * p.tile.m, at), b = p.b.From(at, column * p.tile.n);
    const int64_t a_columns = a.transposed ? m : depth, b_columns = b.transposed ? depth : n;
    float* wide_a = scratch_a.Get(m * depth);
    float* wide_b = scratch_b.Get(n * depth);
    WidenRows(a.data, a.transposed ? depth : m, a_columns, a.ld, wide_a);
    WidenRows(b.data, b.transposed ? n : depth, b_columns, b.ld, wide_b);
    const TiledProduct<float> wide{NumberProducts(1),
                                   {wide_a, a_columns, a.transposed},
                                   {wide_b, b_columns, b.transposed},
                                   p.m,
                                   p.n,
                                   depth,
                                   {m, n},
                                   p.bf16};
    MultiplyF32(wide, 0, 0, c, ldc, accumulate || at > 0);
  }
}

}  // namespace

uint64_t NumberProducts(int64_t count) {
  static std::atomic<uint64_t> next = 1;
  return next.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
}

bool HasBF16Products() { return HasAmx() || OneDnnIsa() == dnnl::cpu_isa::avx512_core_bf16; }

bool HasPackedProducts() {
  return HasBF16Products() || OneDnnIsa() == dnnl::cpu_isa::avx512_core_vnni ||
         OneDnnIsa() == dnnl::cpu_isa::avx512_core;
}

template <class T>
void MultiplyTile(const TiledProduct<T>& p, int64_t row, int64_t column, Acc<T>* c, int64_t ldc,
                  bool accumulate) {
  const int64_t m = p.Rows(row), n = p.Columns(column);
  if (p.k == 0) {
    for (int64_t i = 0; i < m && !accumulate; ++i) std::fill_n(c + i * ldc, n, Acc<T>(0));
    return;
  }
  const SingleThreaded scope;
  if constexpr (std::is_same_v<T, double>) {
    MultiplyF64(p.a.From(row * p.tile.m, 0), p.b.From(0, column * p.tile.n), m, n, p.k, c, ldc,
                accumulate);
  } else if constexpr (std::is_same_v<T, float>) {
    MultiplyF32(p, row, column, c, ldc, accumulate);
  } else if constexpr (std::is_same_v<T, BF16>) {
    const bool native = IsPacked(DType::kBF16, p.bf16, p.m, p.b.transposed);
    (native ? MultiplyPacked<BF16> : MultiplyConverted<BF16>)(p, row, column, c, ldc, accumulate);
  } else {
    MultiplyConverted(p, row, column, c, ldc, accumulate);
  }
}

template void MultiplyTile(const TiledProduct<double>&, int64_t, int64_t, double*, int64_t, bool);
template void MultiplyTile(const TiledProduct<float>&, int64_t, int64_t, float*, int64_t, bool);
template void MultiplyTile(const TiledProduct<BF16>&, int64_t, int64_t, float*, int64_t, bool);
template void MultiplyTile(const TiledProduct<F16>&, int64_t, int64_t, float*, int64_t, bool);

}  // namespace lockstep::cpu
