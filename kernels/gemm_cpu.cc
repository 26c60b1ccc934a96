#include "kernels/gemm_cpu.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "core/error.h"
#include "core/thread_pool.h"
#include "kernels/cpu.h"
#include "kernels/cpu_math.h"
#include "kernels/cpu_scratch.h"
#include "kernels/cpu_simd.h"

#if defined(__SANITIZE_THREAD__)
// oneDNN is not compiled with ThreadSanitizer, which so does not see what its caches of primitives
// are ordered by.
extern "C" const char* __tsan_default_suppressions() { return "race:libdnnl.so\n"; }
#endif

namespace lockstep::cpu {
namespace {

using internal::GemmTile;

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

// ---- One tile, one thread: C = op(A) op(B), or +=. C is f64 or f32. ----

template <class T>
struct Operand {
  const T* data;
  int64_t ld;
  bool transposed;

  // Element (i, j) of the operand as it enters the product.
  const T* At(int64_t i, int64_t j) const { return data + (transposed ? j * ld + i : i * ld + j); }
};

template <class T>
void MultiplyTile(const Operand<T>& a, const Operand<T>& b, int64_t m, int64_t n, int64_t k, T* c,
                  int64_t ldc, bool accumulate);

template <>
void MultiplyTile(const Operand<double>& a, const Operand<double>& b, int64_t m, int64_t n,
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
void MultiplyTileOneDnn(const Operand<T>& a, const Operand<T>& b, int64_t m, int64_t n, int64_t k,
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

template <>
void MultiplyTile(const Operand<float>& a, const Operand<float>& b, int64_t m, int64_t n, int64_t k,
                  float* c, int64_t ldc, bool accumulate) {
  // A primitive is faster (it packs less), but takes a millisecond to make, once a shape: not for
  // small products, whose shapes may change with each token that is generated.
  constexpr int64_t kSmall = 1 << 20;
  if (m * n * k >= kSmall) {
    MultiplyTileOneDnn<float>(a, b, m, n, k, c, ldc, accumulate);
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
void MultiplyTileConverted(const Operand<BF16>& a, const Operand<BF16>& b, int64_t m, int64_t n,
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
    MultiplyTile<float>({wide_a, a_columns, a.transposed}, {wide_b, b_columns, b.transposed}, m, n,
                        depth, c, ldc, accumulate || at > 0);
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

// ---- A tile of the arguments' product, with what follows it. ----

// A row of a finished tile gets bias and GELU, or GELU's derivative, and goes to C. The sums are in
// C already if A is C's type (and a separate pointer to them would keep compilers from
// vectorising).
template <class A, class C>
void FinishRow(const GemmArgs& g, const A* sums, int64_t n, int64_t column, C* c, C* pre,
               const C* gelu_input) {
  const auto sum = [=](int64_t j) {
    if constexpr (std::is_same_v<A, C>) {
      return c[j];
    } else {
      return sums[j];
    }
  };
  if (g.accumulate) {
    for (int64_t j = 0; j < n; ++j) c[j] = Convert<C>(Convert<A>(c[j]) + sums[j]);
    return;
  }
  if (gelu_input != nullptr) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      c[j] = Convert<C>(sum(j) * GeluDerivative(Convert<A>(gelu_input[j])));
    }
    return;
  }
  const auto finish = [&](int64_t begin, int64_t end, const auto& biased) {
    if (!g.gelu) {
      for (int64_t j = begin; j < end; ++j) c[j] = Convert<C>(biased(j));
    } else if (pre == nullptr) {
      for (int64_t j = begin; j < end; ++j) c[j] = Convert<C>(Gelu(biased(j)));
    } else {
      for (int64_t j = begin; j < end; ++j) {
        const A z = biased(j);
        pre[j] = Convert<C>(z);
        c[j] = Convert<C>(Gelu(z));
      }
    }
  };
  if (g.bias == nullptr) return finish(0, n, sum);
  static constexpr int64_t kBlock = 256;
  A bias[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    const C* from = static_cast<const C*>(g.bias) + column;
    for (int64_t j = begin; j < end; ++j) bias[j - begin] = Convert<A>(from[j]);
    finish(begin, end, [&](int64_t j) { return sum(j) + bias[j - begin]; });
  }
}

template <class T>
void Multiply(const GemmArgs& g, const Operand<T>& a, const Operand<T>& b, int64_t m, int64_t n,
              Acc<T>* c, int64_t ldc, bool accumulate) {
  if (g.k == 0) {
    for (int64_t i = 0; i < m && !accumulate; ++i) std::fill_n(c + i * ldc, n, Acc<T>(0));
    return;
  }
  if constexpr (std::is_same_v<T, BF16>) {
    using Mode = GemmArgs::BF16Products;
    const bool native = g.bf16 == Mode::kByCpu ? HasNativeBF16() : g.bf16 == Mode::kOneDnn;
    (native ? MultiplyTileOneDnn<BF16> : MultiplyTileConverted)(a, b, m, n, g.k, c, ldc,
                                                                accumulate);
  } else {
    MultiplyTile<T>(a, b, m, n, g.k, c, ldc, accumulate);
  }
}

template <class T, class C>
void RunTile(const GemmArgs& g, int64_t batch, int64_t i0, int64_t j0, int64_t m, int64_t n) {
  using A = Acc<T>;
  const Operand<T> whole_a{static_cast<const T*>(g.a) + batch * g.stride_a, g.lda, g.transpose_a};
  const Operand<T> whole_b{static_cast<const T*>(g.b) + batch * g.stride_b, g.ldb, g.transpose_b};
  const Operand<T> a{whole_a.At(i0, 0), g.lda, g.transpose_a};
  const Operand<T> b{whole_b.At(0, j0), g.ldb, g.transpose_b};
  const int64_t at = batch * g.stride_c + i0 * g.ldc + j0;
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
  Multiply<T>(g, a, b, m, n, sums, ld, direct && g.accumulate);
  const bool finished = g.accumulate || (g.bias == nullptr && !g.gelu && gelu_input == nullptr);
  if (direct && finished) return;
  Vectorised([=, &g] {
    for (int64_t i = 0; i < m; ++i) {
      // The sums are in a near cache; this row is not, and the CPU does not foresee where it goes
      // on.
      constexpr int64_t kAhead = 4, kLine = 64 / sizeof(C);
      const int64_t row = i * g.ldc, ahead = (i + kAhead) * g.ldc;
      for (int64_t j = 0; j < n && i + kAhead < m; j += kLine) {
        if (pre != nullptr) __builtin_prefetch(pre + ahead + j, 1);
        if (gelu_input != nullptr) __builtin_prefetch(gelu_input + ahead + j);
      }
      FinishRow(g, sums + i * ld, n, j0, c + row, pre == nullptr ? pre : pre + row,
                gelu_input == nullptr ? gelu_input : gelu_input + row);
    }
  });
}

void Check(const GemmArgs& g) {
  LS_INVARIANT(g.m >= 0 && g.n >= 0 && g.k >= 0 && g.batch >= 0);
  LS_INVARIANT(g.lda >= (g.transpose_a ? g.m : g.k) && g.ldb >= (g.transpose_b ? g.k : g.n) &&
               g.ldc >= g.n);
  LS_INVARIANT(!g.accumulate || (g.bias == nullptr && !g.gelu));
  LS_INVARIANT(g.gelu_input == nullptr || (g.bias == nullptr && !g.gelu && !g.accumulate));
}

}  // namespace

// The tile that takes the least time, summed over several numbers of threads, by a model in units
// of one multiplication: the products, what a tile costs per row and column (oneDNN packs a
// transposed B for each tile), and a constant. Columns of B that are read as they lie and do not
// fit into the cache slow down the product. Constants were fitted to measurements of oneDNN 2.6
// with AVX-512; integers, so that every build chooses alike.
GemmTile internal::ChooseGemmTile(bool transpose_b, int64_t m, int64_t n, int64_t k,
                                  int64_t batch) {
  constexpr int64_t kTileM[] = {32, 64, 96, 128, 192, 256, 384, 512};
  constexpr int64_t kTileN[] = {64, 128, 192, 256, 384, 512, 768, 1024};
  constexpr int64_t kCacheElements = 640 << 10;
  struct Load {
    int64_t threads, weight;
  };
  constexpr Load kLoads[] = {{1, 3}, {2, 6}, {4, 3}, {8, 1}};
  const auto even = [](int64_t size, int64_t tile, int64_t unit) {
    const int64_t parts = (size + tile - 1) / tile;
    const int64_t part = (size + parts - 1) / parts;
    return parts == 1 ? part : (part + unit - 1) / unit * unit;
  };
  GemmTile best{m, n};
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int64_t try_m : kTileM) {
    const int64_t tm = even(m, try_m, 8);
    for (int64_t try_n : kTileN) {
      const int64_t tn = even(n, try_n, 64);
      const int64_t columns = (tn + 15) / 16 * 16;
      int64_t tile = k * (tm * columns + 20 * tm + (transpose_b ? 20 : 4) * tn) + 100'000;
      if (!transpose_b && tn * k > kCacheElements) tile += tile / 2;
      const int64_t tiles = (m + tm - 1) / tm * ((n + tn - 1) / tn) * batch;
      int64_t cost = 0;
      for (const Load& load : kLoads) {
        const int64_t rounds = (tiles + load.threads - 1) / load.threads;
        const int64_t wake = tiles > 1 ? 200'000 : 0;
        cost += load.weight * load.threads * (rounds * tile + wake);
      }
      if (cost < best_cost) {
        best_cost = cost;
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
    int64_t m = -1, n = 0, k = 0, batch = 0;
    bool transpose_b = false;
    GemmTile tile{};
  };
  static thread_local std::array<Entry, 64> entries;
  const uint64_t key =
      ((static_cast<uint64_t>(g.m) * 0x10001 + static_cast<uint64_t>(g.n)) * 0x10001 +
       static_cast<uint64_t>(g.k)) *
          2 +
      (g.transpose_b ? 1 : 0);
  Entry& e = entries[key * 0x9E3779B97F4A7C15ull >> 58];
  if (e.m != g.m || e.n != g.n || e.k != g.k || e.batch != g.batch ||
      e.transpose_b != g.transpose_b) {
    e = {g.m,     g.n,           g.k,
         g.batch, g.transpose_b, internal::ChooseGemmTile(g.transpose_b, g.m, g.n, g.k, g.batch)};
  }
  return e.tile;
}

}  // namespace

void Gemm(const GemmArgs& g) { Gemm(std::span(&g, 1)); }

void Gemm(std::span<const GemmArgs> products) {
  struct Tiles {
    GemmTile tile{};
    int64_t rows = 0, columns = 0, end = 0;  // tiles up to `end` are of this product or before it
  };
  LS_INVARIANT(products.size() <= kMostProducts);
  std::array<Tiles, kMostProducts> tiles;
  int64_t total = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const GemmArgs& g = products[i];
    Check(g);
    if (g.m > 0 && g.n > 0 && g.batch > 0) {
      const GemmTile tile = TileOf(g);
      const int64_t rows = (g.m + tile.m - 1) / tile.m, columns = (g.n + tile.n - 1) / tile.n;
      total += g.batch * rows * columns;
      tiles[i] = {tile, rows, columns};
    }
    tiles[i].end = total;
  }
  ParallelFor(total, 1, [&](int64_t begin, int64_t end) {
    const SingleThreaded scope;
    for (int64_t at = begin; at < end; ++at) {
      size_t i = 0;
      while (at >= tiles[i].end) ++i;
      const GemmArgs& g = products[i];
      const auto& [tile, rows, columns, after] = tiles[i];
      const int64_t index = at - (after - g.batch * rows * columns);
      const int64_t i0 = index % rows * tile.m, j0 = index / rows % columns * tile.n;
      const int64_t m = std::min(tile.m, g.m - i0), n = std::min(tile.n, g.n - j0);
      DispatchFloat("gemm", g.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        DispatchFloat("gemm", g.c_dtype, [&](auto c_tag) {
          using C = typename decltype(c_tag)::type;
          RunTile<T, C>(g, index / (rows * columns), i0, j0, m, n);
        });
      });
    }
  });
}

}  // namespace lockstep::cpu
