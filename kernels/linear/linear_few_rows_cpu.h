// Products with few rows, as in generating text: y [M, N] = x [M, K] weight [N, K]^T for M up to
// kFewRows. Such a product is as fast as the weight can be read, so each weight is read once, and
// the sum over K has an order that depends only on K: lane l of kStep adds the products of the
// elements l, l + kStep, ...; then the lanes are added in pairs. So a row has the same bits in any
// batch.
#pragma once

#include <algorithm>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/vector.h"
#include "kernels/linear/linear.h"

namespace lockstep::cpu {

template <class T>
class FewRows {
  using A = Acc<T>;
  static constexpr int kLanes = 32 / sizeof(A);
  static constexpr int64_t kStep = 2 * kLanes;
  using Lanes = Vector<A, kLanes>;
  using Sum = typename Lanes::Type;

 public:
  // sums[i * ld + j] = the product of row i of x and row j of the weight, for all `rows` of x and
  // the weight's rows [0, n).
  static void Multiply(const T* x, int64_t rows, const T* weight, int64_t n, int64_t k, A* sums,
                       int64_t ld) {
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
      const T* w = weight + j * k;
      int64_t i = 0;
      for (; i + 2 <= rows; i += 2) {
        Block<2, 2>(x + i * k, w, k, sums + i * ld + j, ld);
        Block<2, 2>(x + i * k, w + 2 * k, k, sums + i * ld + j + 2, ld);
      }
      if (i < rows) Block<1, 4>(x + i * k, w, k, sums + i * ld + j, ld);
    }
    for (; j < n; ++j) {
      for (int64_t i = 0; i < rows; ++i) {
        Block<1, 1>(x + i * k, weight + j * k, k, sums + i * ld + j, ld);
      }
    }
  }

 private:
  static Sum Load(const T* p) {
    if constexpr (std::is_same_v<T, A>) {
      return *reinterpret_cast<const typename Lanes::Memory*>(p);
    } else {
      Sum v;
      for (int64_t l = 0; l < kLanes; ++l) v[l] = Convert<A>(p[l]);
      return v;
    }
  }

  template <int R, int N>
  static void Step(const T* const (&x)[R], const T* const (&w)[N], Sum (&sum)[R][N][2]) {
#pragma GCC unroll 4
    for (int part = 0; part < 2; ++part) {
      Sum loaded[N];
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) loaded[j] = Load(w[j] + part * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        const Sum row = Load(x[i] + part * kLanes);
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) sum[i][j][part] = Fma(row, loaded[j], sum[i][j][part]);
      }
    }
  }

  // R rows of x by N of the weight.
  template <int R, int N>
  static void Block(const T* x, const T* weight, int64_t k, A* sums, int64_t ld) {
    Sum sum[R][N][2] = {};
    const T *rows[R], *columns[N];
    int64_t l = 0;
    for (; l + kStep <= k; l += kStep) {
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) rows[i] = x + i * k + l;
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) columns[j] = weight + j * k + l;
      Step<R, N>(rows, columns, sum);
    }
    if (l < k) {  // the rest, padded with zeros
      T padded[R + N][kStep] = {};
      for (int i = 0; i < R; ++i) {
        rows[i] = padded[i];
        std::copy(x + i * k + l, x + (i + 1) * k, padded[i]);
      }
      for (int j = 0; j < N; ++j) {
        columns[j] = padded[R + j];
        std::copy(weight + j * k + l, weight + (j + 1) * k, padded[R + j]);
      }
      Step<R, N>(rows, columns, sum);
    }
    for (int i = 0; i < R; ++i) {
      for (int j = 0; j < N; ++j) sums[i * ld + j] = SumLanes(sum[i][j][0] + sum[i][j][1]);
    }
  }
};

// Computes all outputs; M is at most kFewRows.
template <class T>
void LinearFewRows(const LinearForwardArgs& args) {
  using A = Acc<T>;
  constexpr int64_t kColumns = 64;                 // sums of one round
  constexpr int64_t kProducts = int64_t{1} << 17;  // of a chunk: some ten microseconds
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.weight.dim(0);
  if (m == 0) return;
  const int64_t rounds = std::max<int64_t>(1, kProducts / (std::max<int64_t>(1, m * k) * kColumns));
  ParallelFor(n, rounds * kColumns, [&](int64_t begin, int64_t end) {
    A sums[kFewRows * kColumns];
    for (int64_t column = begin; column < end; column += kColumns) {
      const int64_t width = std::min(kColumns, end - column);
      FewRows<T>::Multiply(args.x.data<T>(), m, args.weight.data<T>() + column * k, width, k, sums,
                           kColumns);
      for (int64_t i = 0; i < m; ++i) {
        A* sum = sums + i * kColumns;
        if (args.bias.defined()) {
          const T* bias = args.bias.data<T>() + column;
          for (int64_t j = 0; j < width; ++j) sum[j] += Convert<A>(bias[j]);
        }
        if (args.pre_activation.defined()) {
          T* pre = args.pre_activation.data<T>() + i * n + column;
          for (int64_t j = 0; j < width; ++j) pre[j] = Convert<T>(sum[j]);
        }
        T* y = args.y.data<T>() + i * n + column;
        if (args.activation == Activation::kGelu) {
          for (int64_t j = 0; j < width; ++j) y[j] = Convert<T>(Gelu(sum[j]));
        } else {
          for (int64_t j = 0; j < width; ++j) y[j] = Convert<T>(sum[j]);
        }
      }
    }
  });
}

}  // namespace lockstep::cpu
