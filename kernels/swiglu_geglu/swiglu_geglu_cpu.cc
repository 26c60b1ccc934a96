#include <utility>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/simd.h"
#include "kernels/swiglu_geglu/swiglu_geglu.h"

namespace lockstep::cpu {
namespace {

// Calls f(row, column, n) for runs within rows of `columns` that cover all elements, in parallel.
// The chunks do not follow the rows, so that a single long row is divided too.
template <class F>
void ForEachRowRun(int64_t elements, int64_t columns, const F& f) {
  VectorisedParallelFor(elements, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / columns, column = begin % columns;
      const int64_t n = std::min(end - begin, columns - column);
      f(row, column, n);
      begin += n;
    }
  });
}

struct SiluGate {
  template <class A>
  static A Forward(A x) {
    return Silu(x);
  }
  // The derivatives of Forward(x) up by x and by up, times dy.
  template <class A>
  static std::pair<A, A> Gradient(A x, A up, A dy) {
    const A s = A(1) / (A(1) + Exp(-x));
    return {dy * up * (s * std::fma(x, A(1) - s, A(1))), dy * (x * s)};
  }
};
struct GeluTanhGate {
  template <class A>
  static A Forward(A x) {
    return Gelu(x);
  }
  template <class A>
  static std::pair<A, A> Gradient(A x, A up, A dy) {
    return {dy * up * GeluDerivative(x), dy * Gelu(x)};
  }
};

template <class F>
void DispatchGate(GateForm form, const F& f) {
  if (form == GateForm::kSilu) return f(SiluGate());
  f(GeluTanhGate());
}

void SwiGluForwardCpu(Stream, GateForm form, const Tensor& gate_up, const Tensor& y) {
  DispatchFloat("swiglu", y.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const int64_t f = y.dim(-1);
    const T* in = gate_up.data<T>();
    T* out = y.data<T>();
    DispatchGate(form, [&](auto function) {
      ForEachRowRun(y.numel(), f, [=](int64_t row, int64_t column, int64_t n) {
        const T *gate = in + row * 2 * f + column, *up = gate + f;
        T* to = out + row * f + column;
        for (int64_t i = 0; i < n; ++i) {
          to[i] = Convert<T>(function.Forward(Convert<A>(gate[i])) * Convert<A>(up[i]));
        }
      });
    });
  });
}

// A loop of its own for either case: with both in one, compilers do not vectorise it.
template <bool accumulate, class Gate, class T>
void SwiGluBackward(const Tensor& gate_up, const Tensor& dy, const Tensor& dgate_up) {
  using A = Acc<T>;
  const int64_t f = dy.dim(-1);
  const T *in = gate_up.data<T>(), *grad = dy.data<T>();
  T* out = dgate_up.data<T>();
  ForEachRowRun(dy.numel(), f, [=](int64_t row, int64_t column, int64_t n) {
    const T *gate = in + row * 2 * f + column, *up = gate + f, *g = grad + row * f + column;
    T *dgate = out + row * 2 * f + column, *dup = dgate + f;
    for (int64_t i = 0; i < n; ++i) {
      const auto [a, b] = Gate::Gradient(Convert<A>(gate[i]), Convert<A>(up[i]), Convert<A>(g[i]));
      dgate[i] = Convert<T>(accumulate ? Convert<A>(dgate[i]) + a : a);
      dup[i] = Convert<T>(accumulate ? Convert<A>(dup[i]) + b : b);
    }
  });
}

void SwiGluBackwardCpu(Stream, GateForm form, const Tensor& gate_up, const Tensor& dy,
                       const Tensor& dgate_up, bool accumulate) {
  DispatchFloat("swiglu", dy.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchGate(form, [&](auto function) {
      using Gate = decltype(function);
      if (accumulate) {
        SwiGluBackward<true, Gate, T>(gate_up, dy, dgate_up);
      } else {
        SwiGluBackward<false, Gate, T>(gate_up, dy, dgate_up);
      }
    });
  });
}

LS_REGISTER(swiglu_forward, DeviceType::kCpu, SwiGluForwardCpu);
LS_REGISTER(swiglu_backward, DeviceType::kCpu, SwiGluBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
