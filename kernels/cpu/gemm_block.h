// The innermost part of a product: a block of a few rows by a few vectors of columns, whose sums
// stay in registers. Included by gemm_tile.cc alone, once per instruction set, inside a namespace
// and a target of its own: hence no #pragma once, no other includes, and no function of the
// standard library.
#ifdef LOCKSTEP_GEMM_VECTOR_BYTES

// What the registers hold, beside a row of B and an element of A.
constexpr int kRows = LOCKSTEP_GEMM_VECTOR_BYTES == 64 ? 8 : 6;
constexpr int kVectors = LOCKSTEP_GEMM_VECTOR_BYTES == 64 ? 3 : 2;

template <class T>
constexpr int kLanes = LOCKSTEP_GEMM_VECTOR_BYTES / int{sizeof(T)};
template <class T>
using Vec = typename Vector<T, kLanes<T>>::Type;
template <class T>
using VecInMemory = typename Vector<T, kLanes<T>>::Memory;

#if LOCKSTEP_GEMM_VECTOR_BYTES == 64
inline Vec<float> Broadcast(float x) { return _mm512_set1_ps(x); }
inline Vec<double> Broadcast(double x) { return _mm512_set1_pd(x); }
inline Vec<float> Fma(Vec<float> a, Vec<float> b, Vec<float> c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec<double> Fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm512_fmadd_pd(a, b, c);
}
#else
inline Vec<float> Broadcast(float x) { return _mm256_set1_ps(x); }
inline Vec<double> Broadcast(double x) { return _mm256_set1_pd(x); }
inline Vec<float> Fma(Vec<float> a, Vec<float> b, Vec<float> c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec<double> Fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm256_fmadd_pd(a, b, c);
}
#endif

// C [R, N vectors] = A [R, depth] B [depth, N vectors], or C += that: each element a chain of fused
// multiply-adds from zero. A's rows are lda elements apart, its columns `step`.
template <class T, int R, int N>
void Block(int64_t depth, const T* a, int64_t lda, int64_t step, const T* b, int64_t ldb, T* c,
           int64_t ldc, bool add, const Prefetch& ahead) {
  Vec<T> sum[R][N] = {};
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) __builtin_prefetch(c + i * ldc + j * kLanes<T>, 1);
  }
#pragma GCC unroll 4
  for (int64_t l = 0; l < depth; ++l) {
    __builtin_prefetch(ahead.from + l % 8 * ahead.near + l / 8 * ahead.far);
    Vec<T> row[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      row[j] = *reinterpret_cast<const VecInMemory<T>*>(b + l * ldb + j * kLanes<T>);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vec<T> x = Broadcast(a[i * lda + l * step]);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) sum[i][j] = Fma(x, row[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      auto& to = *reinterpret_cast<VecInMemory<T>*>(c + i * ldc + j * kLanes<T>);
      to = add ? to + sum[i][j] : sum[i][j];
    }
  }
}

template <class T, class Sequence>
struct BlocksOf;
template <class T, int... I>
struct BlocksOf<T, std::integer_sequence<int, I...>> {
  static constexpr BlockFunction<T>* kAll[] = {Block<T, I % kRows + 1, I / kRows + 1>...};
};
// All sizes of blocks.
template <class T>
constexpr BlockFunctions<T> kBlocks = {
    kRows, kVectors* kLanes<T>, kLanes<T>,
    BlocksOf<T, std::make_integer_sequence<int, kRows * kVectors>>::kAll};

#endif  // LOCKSTEP_GEMM_VECTOR_BYTES
