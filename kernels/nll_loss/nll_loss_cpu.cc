#include "kernels/checks.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/nll_loss/nll_loss.h"

namespace lockstep::cpu {
namespace {

// Calls f with tags of the types of the logarithms and of the targets.
template <class F>
void Dispatch(const Tensor& log_probs, const Tensor& targets, const F& f) {
  DispatchFloat("nll_loss", log_probs.dtype(), [&](auto tag) {
    DispatchIndex("nll_loss", targets.dtype(), [&](auto index_tag) { f(tag, index_tag); });
  });
}

void NllLossForwardCpu(Stream, const Tensor& log_probs, const Tensor& targets, int64_t ignore,
                       const Tensor& losses) {
  Dispatch(log_probs, targets, [&]<class T, class I>(TypeTag<T>, TypeTag<I>) {
    const T* from = log_probs.data<T>();
    const I* classes = targets.data<I>();
    Acc<T>* out = losses.data<Acc<T>>();
    const int64_t v = log_probs.dim(1);
    ParallelFor(targets.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t target = classes[i];
        if (target != ignore && (target < 0 || target >= v)) {
          ThrowTarget("nll_loss", target, i, v, ignore);
        }
        out[i] = target == ignore ? Acc<T>(0) : -Convert<Acc<T>>(from[i * v + target]);
      }
    });
  });
}

void NllLossBackwardCpu(Stream, const Tensor& targets, int64_t ignore, const Tensor& upstream,
                        const Tensor& scale, const Tensor& dlog_probs) {
  Dispatch(dlog_probs, targets, [&]<class T, class I>(TypeTag<T>, TypeTag<I>) {
    using A = Acc<T>;
    const I* classes = targets.data<I>();
    const A* grad = upstream.data<A>();
    const int64_t v = dlog_probs.dim(1), step = upstream.numel() == 1 ? 0 : 1;
    const A factor = *scale.data<A>();
    T* out = dlog_probs.data<T>();
    ParallelFor(targets.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t target = classes[i];
        if (target == ignore) continue;
        T& at = out[i * v + target];
        at = Convert<T>(Convert<A>(at) - grad[i * step] * factor);
      }
    });
  });
}

LS_REGISTER(nll_loss_forward, DeviceType::kCpu, NllLossForwardCpu);
LS_REGISTER(nll_loss_backward, DeviceType::kCpu, NllLossBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
