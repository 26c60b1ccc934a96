#include <cmath>

#include "kernels/batch_norm/batch_norm.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/reduce.h"

namespace lockstep::cpu {
namespace {

// Calls f(tag, ...) with the element type of a plane tensor [N, C, S].
template <class F>
void Dispatch(const Tensor& x, const F& f) {
  DispatchFloat("batch_norm", x.dtype(), f);
}

// ---- Joining. Item 2 i absorbs item 2 i + 1, then item 4 i absorbs item 4 i + 2, and so on: the
// tree over 2^a times 2^b items is the tree over 2^a trees over 2^b. ----

// join(i, j): item i becomes items i and j. The result is item 0.
template <class F>
void JoinPairwise(int64_t items, const F& join) {
  for (int64_t width = 1; width < items; width *= 2) {
    for (int64_t i = 0; i + width < items; i += 2 * width) join(i, i + width);
  }
}

// Channels [begin, end) of parts [items, 3, c] into those of item 0. Products that are added are
// computed inside fma, so that the bits do not depend on which loop a channel falls into.
template <class A>
void JoinMoments(A* parts, int64_t items, int64_t c, int64_t begin, int64_t end) {
  JoinPairwise(items, [=](int64_t i, int64_t j) {
    A *a = parts + i * 3 * c, *b = parts + j * 3 * c;
    A* __restrict na = a;
    A* __restrict mean = a + c;
    A* __restrict squares = a + 2 * c;
    for (int64_t k = begin; k < end; ++k) {
      const A n = na[k] + b[k];
      const A share = n > 0 ? b[k] / n : A(0);  // b's; exactly 1/2 for equal counts
      const A delta = b[c + k] - mean[k];
      squares[k] = std::fma(delta * delta * na[k], share, squares[k] + b[2 * c + k]);
      mean[k] = std::fma(delta, share, mean[k]);
      na[k] = n;
    }
  });
}

// Channels [begin, end) of parts [items, 2, c] into those of item 0.
template <class A>
void AddParts(A* parts, int64_t items, int64_t c, int64_t begin, int64_t end) {
  JoinPairwise(items, [=](int64_t i, int64_t j) {
    for (int64_t row = 0; row < 2; ++row) {
      A* __restrict to = parts + (2 * i + row) * c;
      const A* __restrict from = parts + (2 * j + row) * c;
      for (int64_t k = begin; k < end; ++k) to[k] += from[k];
    }
  });
}

// Joins parts [items, rows, c] by f(parts, items, c, begin, end) and copies item 0 to `out`;
// without items, zeros.
template <class A, class F>
void Reduce(A* parts, int64_t items, int64_t rows, int64_t c, A* out, const F& f) {
  if (items == 0) {
    std::fill_n(out, rows * c, A(0));
    return;
  }
  ParallelFor(c, std::max<int64_t>(16, kElementwiseGrain / items), [&](int64_t begin, int64_t end) {
    f(parts, items, c, begin, end);
    for (int64_t row = 0; row < rows; ++row) {
      std::copy(parts + row * c + begin, parts + row * c + end, out + row * c + begin);
    }
  });
}

// ---- Forward. ----

void MomentsCpu(Stream, const Tensor& x, const Tensor& moments) {
  Dispatch(x, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const int64_t n = x.dim(0), c = x.dim(1), size = x.dim(2);
    const Tensor parts = Tensor::Empty({n, 3, c}, DTypeOf<A>);
    const T* in = x.data<T>();
    A* out = parts.data<A>();
    ParallelForEach(n * c, GrainOf(x.dim(2)), [=](int64_t row) {
      const T* from = in + row * size;
      A* to = out + row / c * 3 * c + row % c;
      const A sum = PairwiseSum<A>(0, size, [=](int64_t i) { return Convert<A>(from[i]); });
      const A mean = size > 0 ? sum / static_cast<A>(size) : A(0);
      to[0] = static_cast<A>(size);
      to[c] = mean;
      to[2 * c] = PairwiseSum<A>(0, size, [=](int64_t i) {
        const A centred = Convert<A>(from[i]) - mean;
        return centred * centred;
      });
    });
    Reduce(out, n, 3, c, moments.data<A>(), JoinMoments<A>);
  });
}

void JoinCpu(Stream, const Tensor& parts, const Tensor& moments) {
  DispatchWide(parts.dtype(), [&]<class A>(TypeTag<A>) {
    Reduce(parts.data<A>(), parts.dim(0), 3, parts.dim(2), moments.data<A>(), JoinMoments<A>);
  });
}

// running = (1 - factor) running + factor value, in f64, rounded once.
void Blend(const Tensor& running, int64_t i, double factor, double value) {
  Dispatch(running, [&]<class R>(TypeTag<R>) {
    R& r = running.data<R>()[i];
    r = Convert<R>((1 - factor) * Convert<double>(r) + factor * value);
  });
}

void FinishCpu(Stream, const BatchNormFinishArgs& args) {
  double factor = args.momentum;
  if (args.batches.defined()) {
    const int64_t batches = ++args.batches.data<int64_t>()[0];
    if (factor < 0) factor = 1.0 / static_cast<double>(batches);
  }
  DispatchWide(args.moments.dtype(), [&]<class A>(TypeTag<A>) {
    const int64_t c = args.moments.dim(1);
    const A* moments = args.moments.data<A>();
    A *mean = args.mean.data<A>(), *rstd = args.rstd.data<A>();
    for (int64_t k = 0; k < c; ++k) {
      const A n = moments[k], squares = moments[2 * c + k];
      mean[k] = moments[c + k];
      rstd[k] = A(1) / std::sqrt(squares / n + static_cast<A>(args.eps));
      if (!args.running_mean.defined() || n < 2) continue;
      Blend(args.running_mean, k, factor, mean[k]);
      Blend(args.running_var, k, factor,
            static_cast<double>(squares) / (static_cast<double>(n) - 1));
    }
  });
}

void FromRunningCpu(Stream, const Tensor& running_mean, const Tensor& running_var, double eps,
                    const Tensor& mean, const Tensor& rstd) {
  mean.CopyFrom(running_mean);
  const Tensor var = running_var.To(mean.dtype());
  DispatchWide(mean.dtype(), [&]<class A>(TypeTag<A>) {
    const A* v = var.data<A>();
    A* out = rstd.data<A>();
    for (int64_t k = 0; k < rstd.numel(); ++k) {
      out[k] = A(1) / std::sqrt(v[k] + static_cast<A>(eps));
    }
  });
}

// Calls f(row, channel, data offset) for the rows of planes, in parallel.
template <class F>
void ForEachRow(const Tensor& planes, const F& f) {
  const int64_t c = planes.dim(1), size = planes.dim(2);
  ParallelForEach(planes.dim(0) * c, GrainOf(planes.dim(2)),
                  [&](int64_t row) { f(row % c, row * size); });
}

// A parameter in the accumulation type; `otherwise` where it is undefined.
template <class A>
Tensor Widened(const Tensor& parameter, int64_t c, double otherwise) {
  return parameter.defined() ? parameter.To(DTypeOf<A>) : Tensor::Full({c}, otherwise, DTypeOf<A>);
}

void NormalizeCpu(Stream, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                  const Tensor& weight, const Tensor& bias, const Tensor& y) {
  Dispatch(x, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Tensor weights = Widened<A>(weight, x.dim(1), 1), biases = Widened<A>(bias, x.dim(1), 0);
    const A *w = weights.data<A>(), *b = biases.data<A>();
    const A *m = mean.data<A>(), *r = rstd.data<A>();
    const T* in = x.data<T>();
    T* out = y.data<T>();
    const int64_t size = x.dim(2);
    ForEachRow(x, [=](int64_t k, int64_t at) {
      const A centre = m[k], scale = r[k] * w[k], shift = b[k];
      for (int64_t i = at; i < at + size; ++i) {
        out[i] = Convert<T>((Convert<A>(in[i]) - centre) * scale + shift);
      }
    });
  });
}

// ---- Backward. ----

void BackwardSumsCpu(Stream, const Tensor& x, const Tensor& dy, const Tensor& mean,
                     const Tensor& rstd, const Tensor& sums) {
  Dispatch(x, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const int64_t n = x.dim(0), c = x.dim(1), size = x.dim(2);
    const Tensor parts = Tensor::Empty({n, 2, c}, DTypeOf<A>);
    const T *in = x.data<T>(), *grad = dy.data<T>();
    const A *m = mean.data<A>(), *r = rstd.data<A>();
    A* out = parts.data<A>();
    ParallelForEach(n * c, GrainOf(x.dim(2)), [=](int64_t row) {
      const T *from = in + row * size, *g = grad + row * size;
      const A centre = m[row % c];
      A* to = out + row / c * 2 * c + row % c;
      to[0] = PairwiseSum<A>(0, size, [=](int64_t i) { return Convert<A>(g[i]); });
      to[c] = r[row % c] * PairwiseSum<A>(0, size, [=](int64_t i) {
                return Convert<A>(g[i]) * (Convert<A>(from[i]) - centre);
              });
    });
    Reduce(out, n, 2, c, sums.data<A>(), AddParts<A>);
  });
}

void AddCpu(Stream, const Tensor& parts, const Tensor& sums) {
  DispatchWide(parts.dtype(), [&]<class A>(TypeTag<A>) {
    Reduce(parts.data<A>(), parts.dim(0), 2, parts.dim(2), sums.data<A>(), AddParts<A>);
  });
}

void BackwardInputCpu(Stream, const BatchNormBackwardArgs& args) {
  Dispatch(args.x, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const int64_t c = args.x.dim(1), size = args.x.dim(2);
    const Tensor weights = Widened<A>(args.weight, c, 1);
    const A *w = weights.data<A>(), *m = args.mean.data<A>(), *r = args.rstd.data<A>();
    const A* sums = args.sums.defined() ? args.sums.data<A>() : nullptr;
    const A* counts = args.moments.defined() ? args.moments.data<A>() : nullptr;
    const T *x = args.x.data<T>(), *dy = args.dy.data<T>();
    T* out = args.dx.tensor.data<T>();
    const bool accumulate = args.dx.accumulate;
    ForEachRow(args.x, [=](int64_t k, int64_t at) {
      const A scale = w[k] * r[k], centre = m[k];
      const A mean_dy = sums ? sums[k] / counts[k] : A(0);
      // xhat mean(dy xhat) = (x - mean) slope
      const A slope = sums ? r[k] * (sums[c + k] / counts[k]) : A(0);
      for (int64_t i = at; i < at + size; ++i) {
        const A g = scale * (Convert<A>(dy[i]) - mean_dy - (Convert<A>(x[i]) - centre) * slope);
        out[i] = Convert<T>(accumulate ? Convert<A>(out[i]) + g : g);
      }
    });
  });
}

LS_REGISTER(batch_norm_moments, DeviceType::kCpu, MomentsCpu);
LS_REGISTER(batch_norm_join, DeviceType::kCpu, JoinCpu);
LS_REGISTER(batch_norm_finish, DeviceType::kCpu, FinishCpu);
LS_REGISTER(batch_norm_from_running, DeviceType::kCpu, FromRunningCpu);
LS_REGISTER(batch_norm_normalize, DeviceType::kCpu, NormalizeCpu);
LS_REGISTER(batch_norm_backward_sums, DeviceType::kCpu, BackwardSumsCpu);
LS_REGISTER(batch_norm_add, DeviceType::kCpu, AddCpu);
LS_REGISTER(batch_norm_backward_input, DeviceType::kCpu, BackwardInputCpu);

}  // namespace
}  // namespace lockstep::cpu
