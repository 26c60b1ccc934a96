#include "kernels/cpu.h"
#include "kernels/cpu_math.h"
#include "kernels/cpu_simd.h"
#include "kernels/gelu/gelu.h"

namespace lockstep::cpu {
namespace {

template <GeluForm form>
struct GeluFunction {
  template <class A>
  static A Forward(A x) {
    return form == GeluForm::kExact ? GeluExact(x) : Gelu(x);
  }
  template <class A>
  static A Derivative(A x) {
    return form == GeluForm::kExact ? GeluExactDerivative(x) : GeluDerivative(x);
  }
};

template <class F>
void DispatchForm(GeluForm form, const F& f) {
  if (form == GeluForm::kExact) return f(GeluFunction<GeluForm::kExact>());
  f(GeluFunction<GeluForm::kTanh>());
}

void GeluForwardCpu(Stream, GeluForm form, const Tensor& x, const Tensor& y) {
  DispatchFloat("gelu", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    DispatchForm(form, [&](auto function) {
      const T* in = x.data<T>();
      T* out = y.data<T>();
      VectorisedParallelFor(x.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          out[i] = Convert<T>(function.Forward(Convert<Acc<T>>(in[i])));
        }
      });
    });
  });
}

void GeluBackwardCpu(Stream, GeluForm form, const Tensor& x, const Tensor& dy, const Tensor& dx,
                     bool accumulate) {
  DispatchFloat("gelu", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Acc<T>;
    DispatchForm(form, [&](auto function) {
      const T* in = x.data<T>();
      const T* grad = dy.data<T>();
      T* out = dx.data<T>();
      VectorisedParallelFor(x.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
        const auto gradient = [=](int64_t i) {
          return Convert<A>(grad[i]) * function.Derivative(Convert<A>(in[i]));
        };
        // Two loops: with both cases in one, compilers do not vectorise it.
        if (accumulate) {
          for (int64_t i = begin; i < end; ++i) {
            out[i] = Convert<T>(Convert<A>(out[i]) + gradient(i));
          }
        } else {
          for (int64_t i = begin; i < end; ++i) out[i] = Convert<T>(gradient(i));
        }
      });
    });
  });
}

LS_REGISTER(gelu_forward, DeviceType::kCpu, GeluForwardCpu);
LS_REGISTER(gelu_backward, DeviceType::kCpu, GeluBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
