// The rows of layer_norm, rms_norm and residual_norm: one set of loops.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/autograd/node.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"

namespace lockstep::cpu {

// What is normalised: the row less its mean (layer_norm), or the row itself (rms_norm).
enum class Centring { kMean, kNone };

template <class T>
struct NormForwardRows {
  using A = Acc<T>;
  int64_t rows, c;
  const T* x;
  const A *w, *b;  // null: there is none; without w no b either
  A eps;
  T* y;
  A *mean, *rstd;  // mean unused if not centred
};

// What is added to x before it is normalised; in layer_norm and rms_norm, nothing. Such a function
// takes a row of x and its index, and returns the sum, wherever it put it.
struct NoBranch {
  template <class T>
  const T* operator()(const T* x, int64_t) const {
    return x;
  }
};

template <Centring centring, class T, class Branch>
void NormForwardRow(const NormForwardRows<T>& in, int64_t row, const Branch& add_branch) {
  using A = Acc<T>;
  const int64_t c = in.c;
  const T* x = add_branch(in.x + row * c, row);
  T* y = in.y + row * c;
  const A *w = in.w, *b = in.b;
  A m = 0;
  if constexpr (centring == Centring::kMean) {
    m = SumOver<A>(c, [=](int64_t i) { return Convert<A>(x[i]); }) / A(c);
    in.mean[row] = m;
  }
  const A squares = SumOver<A>(c, [=](int64_t i) {
    const A centred = Convert<A>(x[i]) - m;
    return centred * centred;
  });
  const A r = A(1) / std::sqrt(squares / A(c) + in.eps);
  in.rstd[row] = r;
  const auto normed = [=](int64_t i) { return (Convert<A>(x[i]) - m) * r; };
  if (b != nullptr) {
    for (int64_t i = 0; i < c; ++i) y[i] = Convert<T>(std::fma(normed(i), w[i], b[i]));
  } else if (w == nullptr) {
    for (int64_t i = 0; i < c; ++i) y[i] = Convert<T>(normed(i));
  } else {
    for (int64_t i = 0; i < c; ++i) y[i] = Convert<T>(normed(i) * w[i]);
  }
}

template <Centring centring, class T, class Branch = NoBranch>
void NormForward(const NormForwardRows<T>& in, const Branch& add_branch = {}) {
  VectorisedParallelFor<T>(in.rows, GrainOf(in.c), [=](int64_t row, int64_t end) {
    for (; row < end; ++row) NormForwardRow<centring>(in, row, add_branch);
  });
}

template <class T>
struct NormBackwardRows {
  using A = Acc<T>;
  int64_t rows, c;
  const T *x, *dy;           // x is what was normalised
  const T* dsum;             // null, or a gradient of x that is added
  const A *w, *mean, *rstd;  // w null: there is no weight
  T* dx;                     // null: not needed
  bool accumulate;
};

// With xhat = (x - mean) rstd and g = dy w:  dx = rstd (g - mean(g) - xhat mean(g xhat)), where
// mean(g) is left out if not centred. scratch has room for 2c: xhat and g, where g is rounded, so
// that it cancels exactly against a mean of equal values.
template <Centring centring, class T>
void NormInputGradient(const NormBackwardRows<T>& in, int64_t row, Acc<T>* scratch) {
  using A = Acc<T>;
  const int64_t c = in.c;
  const T *x = in.x + row * c, *dy = in.dy + row * c;
  T* dx = in.dx + row * c;
  const A m = centring == Centring::kMean ? in.mean[row] : A(0), r = in.rstd[row];
  const A* w = in.w;
  A *xhat = scratch, *g = scratch + c;
  for (int64_t i = 0; i < c; ++i) xhat[i] = (Convert<A>(x[i]) - m) * r;
  if (w == nullptr) {
    for (int64_t i = 0; i < c; ++i) g[i] = Convert<A>(dy[i]);
  } else {
    for (int64_t i = 0; i < c; ++i) g[i] = Convert<A>(dy[i]) * w[i];
  }
  A mean_g = 0;
  if constexpr (centring == Centring::kMean) {
    mean_g = SumOver<A>(c, [=](int64_t i) { return g[i]; }) / A(c);
  }
  const A mean_gx = SumOver<A>(c, [=](int64_t i) { return g[i] * xhat[i]; }) / A(c);
  const auto by_rstd = [=](int64_t i) { return std::fma(-xhat[i], mean_gx, g[i] - mean_g); };
  if (in.dsum != nullptr) {
    const T* dsum = in.dsum + row * c;
    for (int64_t i = 0; i < c; ++i)
      dx[i] = Convert<T>(std::fma(r, by_rstd(i), Convert<A>(dsum[i])));
  } else if (in.accumulate) {
    for (int64_t i = 0; i < c; ++i) dx[i] = Convert<T>(std::fma(r, by_rstd(i), Convert<A>(dx[i])));
  } else {
    for (int64_t i = 0; i < c; ++i) dx[i] = Convert<T>(r * by_rstd(i));
  }
}

// dweight += dy xhat and, if centred, dbias += dy, of one row.
template <Centring centring, class T>
void NormAffineGradient(const NormBackwardRows<T>& in, int64_t row, Acc<T>* dweight,
                        Acc<T>* dbias) {
  using A = Acc<T>;
  const T *x = in.x + row * in.c, *dy = in.dy + row * in.c;
  const A m = centring == Centring::kMean ? in.mean[row] : A(0), r = in.rstd[row];
  for (int64_t i = 0; i < in.c; ++i) {
    const A g = Convert<A>(dy[i]);
    dweight[i] = std::fma(g, (Convert<A>(x[i]) - m) * r, dweight[i]);
    if constexpr (centring == Centring::kMean) dbias[i] += g;
  }
}

// target (+)= the sum of the blocks' partial sums, in their order.
template <class A>
void NormSumBlocks(const A* partial, int64_t blocks, int64_t stride, const GradTarget& target) {
  if (!target.tensor.defined()) return;
  DispatchFloat("norm", target.tensor.dtype(), [&]<class D>(TypeTag<D>) {
    D* out = target.tensor.data<D>();
    const bool accumulate = target.accumulate;
    constexpr int64_t kColumns = 256;
    ParallelFor(target.tensor.numel(), kColumns, [=](int64_t begin, int64_t end) {
      A sum[kColumns] = {};
      for (int64_t block = 0; block < blocks; ++block) {
        const A* from = partial + block * stride + begin;
        for (int64_t i = 0; i < end - begin; ++i) sum[i] += from[i];
      }
      for (int64_t i = begin; i < end; ++i) {
        const A total = accumulate ? Convert<A>(out[i]) + sum[i - begin] : sum[i - begin];
        out[i] = Convert<D>(total);
      }
    });
  });
}

// What happens to a row of dx once it is computed; with NoBranch, nothing. Such a function may add
// to one more row of sums over all rows, which go to a target of their own.
struct NoBranchGradient {
  static constexpr int64_t kSums = 0;
  template <class T>
  void operator()(const T*, int64_t, Acc<T>*) const {}
};

// Gradients of weight and bias are computed where their tensor is defined.
template <Centring centring, class T, class BranchGradient = NoBranchGradient>
void NormBackward(const NormBackwardRows<T>& in, const GradTarget& dweight, const GradTarget& dbias,
                  const BranchGradient& hand_on = {}) {
  using A = Acc<T>;
  const int64_t rows = in.rows, c = in.c;
  const bool affine = dweight.tensor.defined() || dbias.tensor.defined();
  constexpr int64_t kNormSums = centring == Centring::kMean ? 2 : 1;
  constexpr int64_t kSums = kNormSums + BranchGradient::kSums;
  // At most 64 partial sums, of at least 16 rows: they depend on the shape, not on the threads.
  const int64_t block_rows = std::max<int64_t>(16, DivideUp(rows, 64));
  const int64_t blocks = DivideUp(rows, block_rows);
  const bool sums_wanted = affine || BranchGradient::kSums > 0;
  const Tensor partials = Tensor::Empty({sums_wanted ? blocks : 0, kSums, c}, DTypeOf<A>);
  A* partial = partials.data<A>();
  VectorisedParallelFor<T>(blocks, 1, [&](int64_t block, int64_t end) {
    static thread_local Scratch<A> memory;
    A* scratch = in.dx != nullptr ? memory.Get(2 * c) : nullptr;
    for (; block < end; ++block) {
      A* sums = sums_wanted ? partial + block * kSums * c : nullptr;
      if (sums_wanted) std::fill(sums, sums + kSums * c, A(0));
      const int64_t last = std::min(rows, (block + 1) * block_rows);
      for (int64_t row = block * block_rows; row < last; ++row) {
        if (affine) NormAffineGradient<centring>(in, row, sums, sums + (kNormSums - 1) * c);
        if (in.dx == nullptr) continue;
        NormInputGradient<centring>(in, row, scratch);
        hand_on(in.dx + row * c, row, sums + kNormSums * c);
      }
    }
  });
  const auto finish = [&](const GradTarget& target, int64_t sum) {
    NormSumBlocks(partial ? partial + sum * c : nullptr, blocks, kSums * c, target);
  };
  finish(dweight, 0);
  finish(dbias, kNormSums - 1);
  if constexpr (BranchGradient::kSums > 0) finish(hand_on.target, kNormSums);
}

}  // namespace lockstep::cpu
