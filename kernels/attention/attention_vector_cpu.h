// What attention's tiles on the CPU are made of: vectors of kVectorBytes, products of small
// matrices, rows that are made dense or transposed, elementary functions. Included only by
// attention_tile_cpu.h, and made as it is.
#ifdef LOCKSTEP_ATTENTION_VECTOR_BYTES

constexpr int kVectorBytes = LOCKSTEP_ATTENTION_VECTOR_BYTES;
constexpr int kRows = kVectorBytes == 64 ? 8 : 4;  // of a register block; divides kTile

typedef int32_t Int32Vector __attribute__((vector_size(kVectorBytes)));

template <class T>
constexpr int kLanes = kVectorBytes / int{sizeof(T)};
template <class T>
using Vec = typename cpu::Vector<T, kLanes<T>>::Type;

template <class T>
inline Vec<T> Load(const T* p) {
  return *reinterpret_cast<const typename cpu::Vector<T, kLanes<T>>::Memory*>(p);
}
template <class T>
inline void Store(T* p, Vec<T> v) {
  *reinterpret_cast<typename cpu::Vector<T, kLanes<T>>::Memory*>(p) = v;
}

// x in all lanes. (Not the sum with zeros, which would be another number for -0.)
template <class T>
inline Vec<T> Broadcast(T x) {
  return x - Vec<T>{};
}

// a b + c, rounded once.
#if LOCKSTEP_ATTENTION_VECTOR_BYTES == 64 && !defined(__clang__)
inline Vec<float> Fma(Vec<float> a, Vec<float> b, Vec<float> c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec<double> Fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm512_fmadd_pd(a, b, c);
}
#else
using cpu::Fma;
#endif

// first x^n + ... + c_n by Horner's rule.
template <class... C>
inline Vec<float> Horner(Vec<float> x, float first, C... c) {
  Vec<float> y = Broadcast(first);
  ((y = Fma(y, x, Broadcast(c))), ...);
  return y;
}

// ---- Products. ----

// The part of a product that is not known to be zero or unneeded, for one block of rows.
struct Range {
  int64_t k_begin, k_end, column_begin;
};

// Rows [0, R) and N vectors of columns of C = A B, or C += A B. A's element (i, l) is
// a[i * row_a + l * column_a].
template <class T, int R, int N>
inline void Block(int64_t k_begin, int64_t k_end, const T* a, int64_t row_a, int64_t column_a,
                  const T* b, int64_t ld_b, T* c, int64_t ld_c, bool accumulate) {
  Vec<T> sum[R][N];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      sum[i][n] = accumulate ? Load(c + i * ld_c + n * kLanes<T>) : Vec<T>{};
    }
  }
  for (int64_t l = k_begin; l < k_end; ++l) {
    Vec<T> row[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) row[n] = Load(b + l * ld_b + n * kLanes<T>);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vec<T> x = Broadcast(a[i * row_a + l * column_a]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[i][n] = Fma(x, row[n], sum[i][n]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) Store(c + i * ld_c + n * kLanes<T>, sum[i][n]);
  }
}

// C [m, n] = A B, or C += A B; m is rounded up to kRows and n to kLanes<T>: all buffers have room.
template <class T, class GetRange>
inline void Product(int64_t m, int64_t n, const T* a, int64_t row_a, int64_t column_a, const T* b,
                    int64_t ld_b, T* c, int64_t ld_c, bool accumulate, const GetRange& range) {
  for (int64_t i = 0; i < m; i += kRows) {
    const Range r = range(i);
    const T* rows = a + i * row_a;
    int64_t j = r.column_begin;
    for (; j + kLanes<T> < n; j += 2 * kLanes<T>) {
      Block<T, kRows, 2>(r.k_begin, r.k_end, rows, row_a, column_a, b + j, ld_b, c + i * ld_c + j,
                         ld_c, accumulate);
    }
    if (j < n) {
      Block<T, kRows, 1>(r.k_begin, r.k_end, rows, row_a, column_a, b + j, ld_b, c + i * ld_c + j,
                         ld_c, accumulate);
    }
  }
}

// ---- Moving rows of heads. ----

// Copies rows [n, d] at `stride` into dense rows of `ld`, with zeros after them and up to `padded`
// rows.
template <class T, class X>
inline void Pack(const X* from, int64_t stride, int64_t n, int64_t padded, int64_t d, int64_t ld,
                 T* to) {
  for (int64_t i = 0; i < padded; ++i) {
    T* out = to + i * ld;
    int64_t j = 0;
    if (i < n) {
      const X* in = from + i * stride;
      for (; j < d; ++j) out[j] = Widen<T>(in[j]);
    }
    for (; j < ld; ++j) out[j] = 0;
  }
}

// The transpose of dense rows [kTile, d] times `factor`: to [d, kTile], in blocks of 4 x 4. Both
// have room for d rounded up to a multiple of 4.
template <class T>
inline void TransposeTile(const T* from, int64_t ld, int64_t d, T factor, T* to) {
  using Four = typename cpu::Vector<T, 4>::Memory;
  for (int64_t i = 0; i < kTile; i += 4) {
    for (int64_t j = 0; j < d; j += 4) {
      const auto row = [&](int64_t l) {
        return *reinterpret_cast<const Four*>(from + (i + l) * ld + j) * factor;
      };
      const Four r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3);
      const Four low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5),
                 high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
      const Four low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5),
                 high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
      const auto column = [&](int64_t l) -> Four& {
        return *reinterpret_cast<Four*>(to + (j + l) * kTile + i);
      };
      column(0) = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
      column(1) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
      column(2) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
      column(3) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
    }
  }
}

// The transpose of rows [n, d] at `stride`, times `factor`: to [d, kTile], followed by zeros.
// `rows` is scratch of kTile rows of ld.
template <class T, class X>
inline void TransposeRows(const X* from, int64_t stride, int64_t n, int64_t d, int64_t ld, T factor,
                          T* rows, T* to) {
  if constexpr (__is_same(T, X)) {
    if (n == kTile && d % 4 == 0) {
      TransposeTile(from, stride, d, factor, to);
      return;
    }
  }
  Pack(from, stride, n, kTile, d, ld, rows);
  TransposeTile(rows, ld, d, factor, to);
}

// ---- Exponentials. ----

// e^x for x <= 88, as Exp of kernels/cpu/math.h; unspecified beyond.
inline Vec<float> ExpVector(Vec<float> x) {
  const Vec<float> low = Vec<float>{} - 87.33654f;
  const Vec<float> clamped = x < low ? low : x;
  // Adding 1.5 x 2^23 rounds to an integer, found in the low bits.
  const Vec<float> shifted = Fma(clamped, Broadcast(1.44269504f), Broadcast(12582912.0f));
  const Vec<float> n = shifted - 12582912.0f;
  const Vec<float> r = Fma(n, Broadcast(2.12194440e-4f), Fma(n, Broadcast(-0.693359375f), clamped));
  const Vec<float> p = Horner(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                              4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  const Vec<float> e = Fma(p * r, r, r) + 1.0f;
  const Int32Vector power = (reinterpret_cast<Int32Vector>(shifted) - 0x4B400000 + 127) << 23;
  const Vec<float> y = e * reinterpret_cast<Vec<float>>(power);
  return x < low ? Vec<float>{} : y;
}
inline Vec<double> ExpVector(Vec<double> x) {
  Vec<double> y;
  for (int i = 0; i < kLanes<double>; ++i) y[i] = Exp(x[i]);
  return y;
}

// tanh within 3e-7 relative: Cephes' polynomial near 0, else by the exponential.
inline Vec<float> TanhVector(Vec<float> x) {
  const Vec<float> size = x < 0.0f ? -x : x;
  const Vec<float> z = x * x;
  const Vec<float> p = Horner(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                              1.33314422036e-1f, -3.33332819422e-1f);
  const Vec<float> small = Fma(p * z, x, x);
  const Vec<float> e = ExpVector((size > 10.0f ? Vec<float>{} + 10.0f : size) * 2.0f);
  const Vec<float> large = 1.0f - 2.0f / (e + 1.0f);
  return size < 0.625f ? small : (x < 0.0f ? -large : large);
}
inline Vec<double> TanhVector(Vec<double> x) {
  Vec<double> y;
  for (int i = 0; i < kLanes<double>; ++i) y[i] = __builtin_tanh(x[i]);
  return y;
}

#endif  // LOCKSTEP_ATTENTION_VECTOR_BYTES
