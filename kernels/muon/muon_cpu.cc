#include <cmath>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/update.h"
#include "kernels/muon/muon_math.h"

namespace lockstep::cpu {
namespace {

// out = op(x) op(y), [m, n] with sums over k.
template <class A>
void Multiply(const A* x, bool transpose_x, const A* y, bool transpose_y, int64_t m, int64_t n,
              int64_t k, A* out) {
  Gemm(Dense({.transpose_a = transpose_x,
              .transpose_b = transpose_y,
              .m = m,
              .n = n,
              .k = k,
              .dtype = DTypeOf<A>,
              .a = x,
              .b = y,
              .c_dtype = DTypeOf<A>,
              .c = out}));
}

// y = a x + b y, elementwise.
template <class A>
void Combine(int64_t n, A a, const A* x, A b, A* y) {
  ParallelFor(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = std::fma(a, x[i], b * y[i]);
  });
}

// x *= 1 / max(|x|, eps), the squares summed in f64 over chunks in their order.
template <class A>
void Normalize(int64_t n, double eps, A* x) {
  const int64_t chunks = DivideUp(n, kElementwiseGrain);
  const Tensor squares = Tensor::Empty({chunks}, DType::kF64);
  double* const sums = squares.data<double>();
  ParallelForEach(chunks, 1, [=](int64_t chunk) {
    const A* from = x + chunk * kElementwiseGrain;
    const int64_t count = std::min(kElementwiseGrain, n - chunk * kElementwiseGrain);
    sums[chunk] = SumOver<double>(count, [=](int64_t i) {
      const double v = from[i];
      return v * v;
    });
  });
  double total = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) total += sums[chunk];
  const A factor = static_cast<A>(1 / std::max(std::sqrt(total), eps));
  ParallelFor(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[i] *= factor;
  });
}

// The iteration on x [rows, columns]; the result is in x or `spare`, whichever is returned.
template <class A>
A* Orthogonalize(int64_t rows, int64_t columns, const MuonHyper& h, A* x, A* spare, A* squares) {
  const bool wide = rows <= columns;
  const int64_t n = std::min(rows, columns), n2 = n * n;
  A *gram = squares, *polynomial = squares + n2;
  for (int step = 0; step < h.steps; ++step) {
    // X X^T for a wide matrix, X^T X for a tall one.
    Multiply(x, !wide, x, wide, n, n, wide ? columns : rows, gram);
    Multiply(gram, false, gram, false, n, n, n, polynomial);
    Combine(n2, static_cast<A>(h.b), gram, static_cast<A>(h.c), polynomial);
    if (wide) {
      Multiply(polynomial, false, x, false, rows, columns, n, spare);
    } else {
      Multiply(x, false, polynomial, false, rows, columns, n, spare);
    }
    Combine(rows * columns, static_cast<A>(h.a), x, A(1), spare);
    std::swap(x, spare);
  }
  return x;
}

void MuonUpdateCpu(Stream stream, const UpdateTensors& t, const Tensor& matrices,
                   const Tensor& squares, const MuonHyper& hyper, const StepValues* values) {
  if (values->found_inf != 0) return;
  const int64_t rows = t.value.dim(0), columns = t.value.dim(1), n = rows * columns;
  DispatchWide(matrices.dtype(), [&]<class A>(TypeTag<A>) {
    A* x = matrices.data<A>();
    const UpdateTensors momentum = MomentumUpdate(t, matrices.Slice(0, 0, 1));
    UpdateAll<MuonMomentumRule>(stream, std::span(&momentum, 1), hyper, values);
    Normalize(n, hyper.eps, x);
    const A* direction = Orthogonalize(rows, columns, hyper, x, x + n, squares.data<A>());
    UpdateTensors update = t;
    update.grad = matrices.Slice(0, direction == x ? 0 : 1, direction == x ? 1 : 2);
    UpdateAll<MuonRule>(stream, std::span<const UpdateTensors>(&update, 1),
                        {MuonFactor(hyper.scale, rows, columns)}, values);
  });
}

LS_REGISTER(muon_update, DeviceType::kCpu, MuonUpdateCpu);

}  // namespace
}  // namespace lockstep::cpu
