#include <cmath>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/update.h"
#include "kernels/muon/muon_math.h"

namespace lockstep::cpu {
namespace {

// out = op(x) op(y), [m, n] with sums over k.
template <class T>
void Multiply(const T* x, bool transpose_x, const T* y, bool transpose_y, int64_t m, int64_t n,
              int64_t k, T* out, bool symmetric = false) {
  Gemm(Dense({.transpose_a = transpose_x,
              .transpose_b = transpose_y,
              .m = m,
              .n = n,
              .k = k,
              .dtype = DTypeOf<T>,
              .a = x,
              .b = y,
              .c_dtype = DTypeOf<T>,
              .c = out,
              .symmetric = symmetric}));
}

// y = a x + b y, elementwise.
template <class T>
void Combine(int64_t n, Acc<T> a, const T* x, Acc<T> b, T* y) {
  ParallelFor(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      y[i] = Convert<T>(std::fma(a, Convert<Acc<T>>(x[i]), b * Convert<Acc<T>>(y[i])));
    }
  });
}

// x *= 1 / max(|x|, eps), the squares summed in f64 over chunks in their order.
template <class A>
void Normalize(int64_t n, double eps, A* x) {
  const int64_t chunks = DivideUp(n, kElementwiseGrain);
  std::vector<double> sums(static_cast<size_t>(chunks));
  ParallelForEach(chunks, 1, [&](int64_t chunk) {
    const A* from = x + chunk * kElementwiseGrain;
    const int64_t count = std::min(kElementwiseGrain, n - chunk * kElementwiseGrain);
    sums[static_cast<size_t>(chunk)] = SumOver<double>(count, [=](int64_t i) {
      const double v = from[i];
      return v * v;
    });
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  const A factor = static_cast<A>(1 / std::max(std::sqrt(total), eps));
  ParallelFor(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[i] *= factor;
  });
}

// The iteration on the first of two matrices [rows, columns]; returns that which has the result.
template <class T>
Tensor Orthogonalize(int64_t rows, int64_t columns, const MuonHyper& h, const Tensor& two,
                     const Tensor& squares) {
  const bool wide = rows <= columns;
  const int64_t n = std::min(rows, columns), n2 = n * n;
  T *x = two.data<T>(), *spare = x + rows * columns;
  T *gram = squares.data<T>(), *polynomial = gram + n2;
  for (int step = 0; step < h.steps; ++step) {
    // X X^T for a wide matrix, X^T X for a tall one.
    Multiply(x, !wide, x, wide, n, n, wide ? columns : rows, gram, /*symmetric=*/true);
    Multiply(gram, false, gram, false, n, n, n, polynomial, /*symmetric=*/true);
    Combine(n2, static_cast<Acc<T>>(h.b), gram, static_cast<Acc<T>>(h.c), polynomial);
    if (wide) {
      Multiply(polynomial, false, x, false, rows, columns, n, spare);
    } else {
      Multiply(x, false, polynomial, false, rows, columns, n, spare);
    }
    Combine(rows * columns, static_cast<Acc<T>>(h.a), x, Acc<T>(1), spare);
    std::swap(x, spare);
  }
  return two.Slice(0, h.steps % 2, h.steps % 2 + 1);
}

void UpdateMatrix(Stream stream, const MuonMatrix& matrix, const MuonHyper& hyper,
                  const StepValues* values) {
  const UpdateTensors& t = *matrix.tensors;
  const Tensor first = matrix.matrices.Slice(0, 0, 1);
  const int64_t rows = t.value.dim(0), columns = t.value.dim(1);
  const UpdateTensors momentum = MomentumUpdate(t, first);
  UpdateAll<MuonMomentumRule>(stream, std::span(&momentum, 1), hyper, values);
  UpdateTensors update = t;
  DispatchWide(first.dtype(), [&]<class A>(TypeTag<A>) {
    Normalize(rows * columns, hyper.eps, first.data<A>());
    if (matrix.narrow.defined()) {
      matrix.narrow.Slice(0, 0, 1).CopyFrom(first);
      update.grad = Orthogonalize<BF16>(rows, columns, hyper, matrix.narrow, matrix.squares);
    } else {
      update.grad = Orthogonalize<A>(rows, columns, hyper, matrix.matrices, matrix.squares);
    }
  });
  UpdateAll<MuonRule>(stream, std::span<const UpdateTensors>(&update, 1),
                      {MuonFactor(hyper.scale, rows, columns), hyper.decay}, values);
}

// Of several matrices, each thread takes one after the other: what is within runs on that thread.
void MuonUpdateCpu(Stream stream, std::span<const MuonMatrix> all, const MuonHyper& hyper,
                   const StepValues* values) {
  if (values->found_inf != 0) return;
  ParallelForEach(std::ssize(all), 1, [&](int64_t i) {
    UpdateMatrix(stream, all[static_cast<size_t>(i)], hyper, values);
  });
}

LS_REGISTER(muon_update, DeviceType::kCpu, MuonUpdateCpu);

}  // namespace
}  // namespace lockstep::cpu
