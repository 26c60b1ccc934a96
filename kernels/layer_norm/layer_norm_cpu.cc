#include <cmath>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/cpu_reduce.h"
#include "kernels/layer_norm/layer_norm.h"

namespace lockstep::cpu {
namespace {

int64_t RowGrain(int64_t c) { return std::max<int64_t>(1, kElementwiseGrain / c); }

void LayerNormForwardCpu(Stream, const Tensor& x, const Tensor& weight, const Tensor& bias,
                         double eps, const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  DispatchFloat("layer_norm", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Acc<T>;
    const int64_t c = x.dim(-1);
    const Tensor weights = weight.To(DTypeOf<A>);
    const Tensor biases = bias.defined() ? bias.To(DTypeOf<A>) : Tensor::Zeros({c}, DTypeOf<A>);
    const A *w = weights.data<A>(), *b = biases.data<A>();
    const T* in = x.data<T>();
    T* out = y.data<T>();
    A *means = mean.data<A>(), *rstds = rstd.data<A>();
    ParallelFor(mean.numel(), RowGrain(c), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* xr = in + row * c;
        T* yr = out + row * c;
        const A m = SumOver<A>(c, [=](int64_t i) { return Convert<A>(xr[i]); }) / A(c);
        const A variance = SumOver<A>(c,
                                      [=](int64_t i) {
                                        const A centred = Convert<A>(xr[i]) - m;
                                        return centred * centred;
                                      }) /
                           A(c);
        const A r = A(1) / std::sqrt(variance + A(eps));
        for (int64_t i = 0; i < c; ++i) {
          yr[i] = Convert<T>((Convert<A>(xr[i]) - m) * r * w[i] + b[i]);
        }
        means[row] = m;
        rstds[row] = r;
      }
    });
  });
}

template <class T>
struct Rows {
  using A = Acc<T>;
  const T *x, *dy;
  const A *w, *mean, *rstd;
  int64_t c;
};

// With xhat = (x - mean) rstd and g = dy w:  dx = rstd (g - mean(g) - xhat mean(g xhat)).
// Leaves xhat and g of the row in scratch[0, c) and scratch[c, 2c), where g is rounded, so that it
// cancels exactly against a mean of equal values.
template <class T>
void InputGradient(const Rows<T>& in, int64_t row, Acc<T>* scratch, T* dx, bool accumulate) {
  using A = Acc<T>;
  const int64_t c = in.c;
  const T *x = in.x + row * c, *dy = in.dy + row * c;
  const A m = in.mean[row], r = in.rstd[row];
  const A* w = in.w;
  A *xhat = scratch, *g = scratch + c;
  for (int64_t i = 0; i < c; ++i) {
    xhat[i] = (Convert<A>(x[i]) - m) * r;
    g[i] = Convert<A>(dy[i]) * w[i];
  }
  const A mean_g = SumOver<A>(c, [=](int64_t i) { return g[i]; }) / A(c);
  const A mean_gx = SumOver<A>(c, [=](int64_t i) { return g[i] * xhat[i]; }) / A(c);
  if (accumulate) {
    for (int64_t i = 0; i < c; ++i) {
      dx[i] = Convert<T>(Convert<A>(dx[i]) + r * (g[i] - mean_g - xhat[i] * mean_gx));
    }
  } else {
    for (int64_t i = 0; i < c; ++i) dx[i] = Convert<T>(r * (g[i] - mean_g - xhat[i] * mean_gx));
  }
}

// dweight += dy xhat and dbias += dy, of one row.
template <class T>
void AddAffineGradient(const Rows<T>& in, int64_t row, Acc<T>* dweight, Acc<T>* dbias) {
  using A = Acc<T>;
  const T *x = in.x + row * in.c, *dy = in.dy + row * in.c;
  const A m = in.mean[row], r = in.rstd[row];
  for (int64_t i = 0; i < in.c; ++i) {
    const A g = Convert<A>(dy[i]);
    dweight[i] += g * ((Convert<A>(x[i]) - m) * r);
    dbias[i] += g;
  }
}

// target (+)= the sum of the blocks' partial sums, in their order.
template <class A>
void SumBlocks(const A* partial, int64_t blocks, int64_t stride, const GradSink::Target& target) {
  if (!target.tensor.defined()) return;
  DispatchFloat("layer_norm", target.tensor.dtype(), [&](auto tag) {
    using D = typename decltype(tag)::type;
    D* out = target.tensor.data<D>();
    const bool accumulate = target.accumulate;
    ParallelFor(target.tensor.numel(), 256, [=](int64_t begin, int64_t end) {
      std::vector<A> sum(static_cast<size_t>(end - begin));
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

void LayerNormBackwardCpu(Stream, const Tensor& x, const Tensor& weight, const Tensor& mean,
                          const Tensor& rstd, const Tensor& dy, const GradSink::Target& dx,
                          const GradSink::Target& dweight, const GradSink::Target& dbias) {
  DispatchFloat("layer_norm", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Acc<T>;
    const int64_t rows = mean.numel(), c = x.dim(-1);
    const Tensor weights = weight.To(DTypeOf<A>);
    const Rows<T> in{x.data<T>(),    dy.data<T>(),   weights.data<A>(),
                     mean.data<A>(), rstd.data<A>(), c};
    T* to = dx.tensor.defined() ? dx.tensor.data<T>() : nullptr;
    const bool affine = dweight.tensor.defined() || dbias.tensor.defined();
    // At most 64 partial sums, of at least 16 rows: they depend on the shape, not on the threads.
    const int64_t block_rows = std::max<int64_t>(16, (rows + 63) / 64);
    const int64_t blocks = (rows + block_rows - 1) / block_rows;
    const Tensor partials = Tensor::Empty({affine ? blocks : 0, 2, c}, DTypeOf<A>);
    A* partial = partials.data<A>();
    ParallelFor(blocks, 1, [&](int64_t block, int64_t end) {
      std::vector<A> scratch(static_cast<size_t>(to ? 2 * c : 0));
      for (; block < end; ++block) {
        A* sums = partial + block * 2 * c;
        if (affine) std::fill(sums, sums + 2 * c, A(0));
        for (int64_t row = block * block_rows; row < std::min(rows, (block + 1) * block_rows);
             ++row) {
          if (affine) AddAffineGradient(in, row, sums, sums + c);
          if (to) InputGradient(in, row, scratch.data(), to + row * c, dx.accumulate);
        }
      }
    });
    SumBlocks(partial, blocks, 2 * c, dweight);
    SumBlocks(partial ? partial + c : nullptr, blocks, 2 * c, dbias);
  });
}

LS_REGISTER(layer_norm_forward, DeviceType::kCpu, LayerNormForwardCpu);
LS_REGISTER(layer_norm_backward, DeviceType::kCpu, LayerNormBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
