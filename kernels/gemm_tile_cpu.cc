#include "kernels/gemm_tile_cpu.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "kernels/cpu_scratch.h"

#if defined(__SANITIZE_THREAD__)
// oneDNN is not compiled with ThreadSanitizer, which so does not see what its caches of primitives
// are ordered by.
extern "C" const char* __tsan_default_suppressions() { return "race:libdnnl.so\n"; }
#endif

namespace lockstep::cpu {
namespace {

// oneDNN on one thread, for the scope. The thread's own setting comes back: programs that embed
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

dnnl::engine& Engine() {
  // Never destroyed: the primitives of other threads may outlive static objects.
  static dnnl::engine& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

struct MatmulKey {
  dnnl::memory::data_type type;  // of A and B
  int64_t m, n, k, lda, ldb, ldc;
  bool transpose_a, transpose_b, accumulate;
  bool operator==(const MatmulKey&) const = default;
};

// A matmul into f32 with its descriptors, ready to run on any pointers.
struct Matmul {
  MatmulKey key;
  uint64_t last_use = 0;
  dnnl::matmul primitive;
  dnnl::memory a, b, c, scratchpad;

  explicit Matmul(const MatmulKey& k) : key(k) {
    using Memory = dnnl::memory;
    const auto strides = [](int64_t ld, bool transposed) {
      return transposed ? Memory::dims{1, ld} : Memory::dims{ld, 1};
    };
    const Memory::desc da({k.m, k.k}, k.type, strides(k.lda, k.transpose_a));
    const Memory::desc db({k.k, k.n}, k.type, strides(k.ldb, k.transpose_b));
    const Memory::desc dc({k.m, k.n}, Memory::data_type::f32, strides(k.ldc, false));
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (k.accumulate) {
      dnnl::post_ops post;
      post.append_sum(1.0f);
      attributes.set_post_ops(post);
    }
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(da, db, dc), attributes,
                                                   Engine());
    primitive = dnnl::matmul(description);
    a = Memory(da, Engine(), nullptr);
    b = Memory(db, Engine(), nullptr);
    c = Memory(dc, Engine(), nullptr);
    scratchpad = Memory(description.scratchpad_desc(), Engine(), nullptr);
  }
};

// The calling thread's primitives: at most kCapacity, the longest unused makes room.
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

template <class T>
void MultiplyByPrimitive(const Operand<T>& a, const Operand<T>& b, int64_t m, int64_t n, int64_t k,
                         float* c, int64_t ldc, bool accumulate) {
  constexpr auto kType =
      std::is_same_v<T, float> ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  static thread_local dnnl::stream stream(Engine());
  static thread_local Scratch<char> scratchpad;
  Matmul& matmul =
      CachedMatmul({kType, m, n, k, a.ld, b.ld, ldc, a.transposed, b.transposed, accumulate});
  matmul.a.set_data_handle(const_cast<T*>(a.data));
  matmul.b.set_data_handle(const_cast<T*>(b.data));
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
  LS_INVARIANT(status == dnnl_success, "oneDNN's matmul of m = ", m, ", n = ", n, ", k = ", k,
               " returned status ", status);
}

void MultiplyF32(const Operand<float>& a, const Operand<float>& b, int64_t m, int64_t n, int64_t k,
                 float* c, int64_t ldc, bool accumulate) {
  // A primitive is faster (it packs less), but takes a millisecond to make, once a shape: not for
  // small products, whose shapes may change with each token that is generated.
  constexpr int64_t kSmall = 1 << 20;
  if (m * n * k >= kSmall) {
    MultiplyByPrimitive<float>(a, b, m, n, k, c, ldc, accumulate);
    return;
  }
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data, a.ld,
                 b.data, b.ld, accumulate ? 1.0f : 0.0f, c, ldc);
  LS_INVARIANT(status == dnnl_success, "oneDNN's sgemm of m = ", m, ", n = ", n, ", k = ", k,
               " returned status ", status);
}

// Rows of `from` into f32, dense.
void WidenRows(const BF16* from, int64_t rows, int64_t columns, int64_t ld, float* to) {
  for (int64_t i = 0; i < rows; ++i) {
    const BF16* in = from + i * ld;
    float* out = to + i * columns;
    for (int64_t j = 0; j < columns; ++j) out[j] = static_cast<float>(in[j]);
  }
}

// bf16 through f32: exact, as each bf16 is a float. k in slices that stay in the cache.
void MultiplyConverted(const Operand<BF16>& a, const Operand<BF16>& b, int64_t m, int64_t n,
                       int64_t k, float* c, int64_t ldc, bool accumulate) {
  constexpr int64_t kSlice = 1024;
  static thread_local Scratch<float> scratch_a, scratch_b;
  for (int64_t at = 0; at < k; at += kSlice) {
    const int64_t depth = std::min(kSlice, k - at);
    const int64_t a_columns = a.transposed ? m : depth, b_columns = b.transposed ? depth : n;
    float* wide_a = scratch_a.Get(m * depth);
    float* wide_b = scratch_b.Get(n * depth);
    WidenRows(a.At(0, at), a.transposed ? depth : m, a_columns, a.ld, wide_a);
    WidenRows(b.At(at, 0), b.transposed ? n : depth, b_columns, b.ld, wide_b);
    MultiplyF32({wide_a, a_columns, a.transposed}, {wide_b, b_columns, b.transposed}, m, n, depth,
                c, ldc, accumulate || at > 0);
  }
}

bool HasNativeBF16() {
  static const bool native = [] {
    switch (dnnl::get_effective_cpu_isa()) {
      case dnnl::cpu_isa::avx512_core_bf16:
      case dnnl::cpu_isa::avx512_core_amx:
        return true;
      default:
        return false;
    }
  }();
  return native;
}

}  // namespace

template <class T>
void MultiplyTile(const Operand<T>& a, const Operand<T>& b, const ProductShape& shape, Acc<T>* c,
                  int64_t ldc, bool accumulate, GemmArgs::BF16Products bf16) {
  const auto [m, n, k] = shape;
  if (k == 0) {
    for (int64_t i = 0; i < m && !accumulate; ++i) std::fill_n(c + i * ldc, n, Acc<T>(0));
    return;
  }
  const SingleThreaded scope;
  if constexpr (std::is_same_v<T, double>) {
    MultiplyF64(a, b, m, n, k, c, ldc, accumulate);
  } else if constexpr (std::is_same_v<T, float>) {
    MultiplyF32(a, b, m, n, k, c, ldc, accumulate);
  } else {
    using Mode = GemmArgs::BF16Products;
    const bool native = bf16 == Mode::kByCpu ? HasNativeBF16() : bf16 == Mode::kOneDnn;
    (native ? MultiplyByPrimitive<BF16> : MultiplyConverted)(a, b, m, n, k, c, ldc, accumulate);
  }
}

template void MultiplyTile(const Operand<double>&, const Operand<double>&, const ProductShape&,
                           double*, int64_t, bool, GemmArgs::BF16Products);
template void MultiplyTile(const Operand<float>&, const Operand<float>&, const ProductShape&,
                           float*, int64_t, bool, GemmArgs::BF16Products);
template void MultiplyTile(const Operand<BF16>&, const Operand<BF16>&, const ProductShape&, float*,
                           int64_t, bool, GemmArgs::BF16Products);

}  // namespace lockstep::cpu
