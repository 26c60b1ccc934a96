#include <array>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/simd.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_few_rows_cpu.h"
#include "kernels/matmul/product_of.h"

namespace lockstep::cpu {
namespace {

void LinearForwardCpu(Stream, const LinearForwardArgs& args) {
  const bool plain = args.activation == Activation::kNone || args.activation == Activation::kGelu;
  if (args.x.dim(0) <= kFewRows && plain) {
    DispatchFloat("linear", args.x.dtype(), [&]<class T>(TypeTag<T>) { LinearFewRows<T>(args); });
    return;
  }
  GemmArgs g = ProductOf<GemmArgs>(args.x, false, args.weight, true, args.y);
  if (args.bias.defined()) g.bias = args.bias.raw_data();
  g.gelu = args.activation == Activation::kGelu;
  if (args.pre_activation.defined()) g.pre_activation = args.pre_activation.raw_data();
  Gemm(g);
}

void LinearBackwardActivationCpu(Stream, const LinearBackwardActivationArgs& args) {
  LS_INVARIANT(args.activation == Activation::kGelu);
  DispatchFloat("linear", args.dy.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const T* z = args.pre_activation.data<T>();
    const T* dy = args.dy.data<T>();
    T* out = args.d_pre.data<T>();
    VectorisedParallelFor<T>(args.dy.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep  // out may be dy
      for (int64_t i = begin; i < end; ++i) {
        out[i] = Convert<T>(Convert<A>(dy[i]) * GeluDerivative(Convert<A>(z[i])));
      }
    });
  });
}

// The sum over rows. A thread owns columns; it adds short runs of rows in the accumulation type and
// these sums in f64, in order.
template <class T, class B>
void SumRows(const Tensor& dy, const GradTarget& out) {
  using A = Acc<T>;
  constexpr int64_t kColumns = 64, kRun = 64;
  const int64_t rows = dy.dim(0), columns = dy.dim(1);
  const T* from = dy.data<T>();
  B* to = out.tensor.data<B>();
  const bool accumulate = out.accumulate;
  VectorisedParallelFor<T>(columns, kColumns, [=](int64_t begin, int64_t end) {
    double total[kColumns] = {};
    const int64_t n = end - begin;
    for (int64_t row = 0; row < rows; row += kRun) {
      A sum[kColumns] = {};
      for (int64_t i = row; i < std::min(rows, row + kRun); ++i) {
        const T* in = from + i * columns + begin;
        if (n == kColumns) {
          for (int64_t j = 0; j < kColumns; ++j) sum[j] += Convert<A>(in[j]);
        } else {
          for (int64_t j = 0; j < n; ++j) sum[j] += Convert<A>(in[j]);
        }
      }
      for (int64_t j = 0; j < n; ++j) total[j] += sum[j];
    }
    for (int64_t j = 0; j < n; ++j) {
      B& b = to[begin + j];
      b = Convert<B>(accumulate ? Convert<double>(b) + total[j] : total[j]);
    }
  });
}

void LinearBackwardCpu(Stream, const LinearBackwardArgs& args) {
  std::array<GemmArgs, 2> products;
  size_t n = 0;
  if (args.dx.tensor.defined()) {
    GemmArgs& g = products[n++] =
        ProductOf<GemmArgs>(args.dy, false, args.weight, false, args.dx.tensor);
    g.accumulate = args.dx.accumulate;
    if (args.activation == Activation::kGelu) g.gelu_input = args.pre_activation.raw_data();
  }
  if (args.dweight.tensor.defined()) {
    GemmArgs& g = products[n++] =
        ProductOf<GemmArgs>(args.dy, true, args.x, false, args.dweight.tensor);
    g.accumulate = args.dweight.accumulate;
  }
  Gemm(std::span(products).first(n));
  if (!args.dbias.tensor.defined()) return;
  DispatchFloat("linear", args.dy.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchFloat("linear", args.dbias.tensor.dtype(),
                  [&]<class B>(TypeTag<B>) { SumRows<T, B>(args.dy, args.dbias); });
  });
}

LS_REGISTER(linear_forward, DeviceType::kCpu, LinearForwardCpu);
LS_REGISTER(linear_backward_activation, DeviceType::kCpu, LinearBackwardActivationCpu);
LS_REGISTER(linear_backward, DeviceType::kCpu, LinearBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
