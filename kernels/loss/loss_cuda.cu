#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/loss/loss.h"

namespace lockstep::cuda {
namespace {

template <LossKind kind>
struct Value {
  __device__ float operator()(float x, float t) const {
    if constexpr (kind == LossKind::kMse) return (x - t) * (x - t);
    if constexpr (kind == LossKind::kL1) return fabsf(x - t);
    if constexpr (kind == LossKind::kBceWithLogits) {
      // Not 0 times infinity where the target is certain.
      const float wrong =
          x > 0.0f ? (t == 1.0f ? 0.0f : x * (1.0f - t)) : (t == 0.0f ? 0.0f : -x * t);
      return wrong + log1pf(expf(-fabsf(x)));
    }
  }
};

// dy times the derivative by x (which = 0) or by the target (1).
template <LossKind kind, int which>
struct Gradient {
  __device__ float operator()(float x, float t, float dy) const {
    if constexpr (kind == LossKind::kBceWithLogits) {
      return dy * (which == 0 ? Sigmoid(x) - t : -x);
    } else {
      const float d = which == 0 ? x - t : t - x;
      if constexpr (kind == LossKind::kMse) return dy * (2.0f * d);
      return dy * (d > 0.0f ? 1.0f : (d < 0.0f ? -1.0f : (d == 0.0f ? 0.0f : d)));  // at last NaN
    }
  }
};

template <LossKind kind>
struct Kind {
  static constexpr LossKind value = kind;
};

template <class F>
void DispatchKind(LossKind kind, const F& f) {
  switch (kind) {
    case LossKind::kMse:
      return f(Kind<LossKind::kMse>());
    case LossKind::kL1:
      return f(Kind<LossKind::kL1>());
    case LossKind::kBceWithLogits:
      return f(Kind<LossKind::kBceWithLogits>());
  }
}

void LossForwardCuda(Stream stream, LossKind kind, const Tensor& x, const Tensor& target,
                     const Tensor& y) {
  DispatchFloat("loss", x.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchKind(kind, [&](auto of) {
      const T *from = Data<T>(x), *to = Data<T>(target);
      Elementwise({"loss_forward", x, target}, stream, y.numel(), std::false_type(),
                  Value<decltype(of)::value>(), Data<float>(y), from, to);
    });
  });
}

void LossBackwardCuda(Stream stream, LossKind kind, int which, const Tensor& x,
                      const Tensor& target, const Tensor& dy, const Tensor& dx, bool accumulate) {
  DispatchFloat("loss", x.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchKind(kind, [&](auto of) {
      constexpr LossKind kKind = decltype(of)::value;
      const T *from = Data<T>(x), *to = Data<T>(target);
      const float* grad = Data<float>(dy);
      const auto run = [&](auto gradient) {
        Elementwise({"loss_backward", x, target, dy}, stream, dx.numel(), accumulate, gradient,
                    Data<T>(dx), from, to, grad);
      };
      if (which == 0) {
        run(Gradient<kKind, 0>());
      } else {
        run(Gradient<kKind, 1>());
      }
    });
  });
}

LS_REGISTER(loss_forward, DeviceType::kCuda, LossForwardCuda);
LS_REGISTER(loss_backward, DeviceType::kCuda, LossBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
