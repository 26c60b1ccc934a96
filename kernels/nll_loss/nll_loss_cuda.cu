#include <cmath>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/nll_loss/nll_loss.h"

namespace lockstep::cuda {
namespace {

// One thread per row; no shared memory. A target outside the classes cannot be reported to the
// host: its loss is NaN.
template <class T, class I>
__global__ void NllLossForwardKernel(int64_t n, int64_t v, int64_t ignore, const T* log_probs,
                                     const I* targets, float* losses) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  const int64_t target = targets[i];
  if (target == ignore) {
    losses[i] = 0.0f;
  } else {
    losses[i] = target >= 0 && target < v ? -ToFloat(log_probs[i * v + target]) : NAN;
  }
}

// One thread per row, which writes at most one element.
template <class T, class I>
__global__ void NllLossBackwardKernel(int64_t n, int64_t v, int64_t ignore, const I* targets,
                                      const float* upstream, int64_t step, const float* scale,
                                      T* dlog_probs) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  const int64_t target = targets[i];
  if (target == ignore || target < 0 || target >= v) return;
  T& at = dlog_probs[i * v + target];
  at = Convert<T>(ToFloat(at) - upstream[i * step] * scale[0]);
}

template <class F>
void Dispatch(const Tensor& log_probs, const Tensor& targets, const F& f) {
  DispatchFloat("nll_loss", log_probs.dtype(), [&](auto tag) {
    DispatchIndex("nll_loss", targets.dtype(), [&](auto index_tag) { f(tag, index_tag); });
  });
}

void NllLossForwardCuda(Stream stream, const Tensor& log_probs, const Tensor& targets,
                        int64_t ignore, const Tensor& losses) {
  Dispatch(log_probs, targets, [&]<class T, class I>(TypeTag<T>, TypeTag<I>) {
    const int64_t n = targets.numel();
    LaunchThreads({"nll_loss_forward", log_probs, targets}, NllLossForwardKernel<T, I>, n, stream,
                  n, log_probs.dim(1), ignore, Data<T>(log_probs), Data<I>(targets),
                  Data<float>(losses));
  });
}

void NllLossBackwardCuda(Stream stream, const Tensor& targets, int64_t ignore,
                         const Tensor& upstream, const Tensor& scale, const Tensor& dlog_probs) {
  Dispatch(dlog_probs, targets, [&]<class T, class I>(TypeTag<T>, TypeTag<I>) {
    const int64_t n = targets.numel(), step = upstream.numel() == 1 ? 0 : 1;
    LaunchThreads({"nll_loss_backward", targets, dlog_probs}, NllLossBackwardKernel<T, I>, n,
                  stream, n, dlog_probs.dim(1), ignore, Data<I>(targets), Data<float>(upstream),
                  step, Data<float>(scale), Data<T>(dlog_probs));
  });
}

LS_REGISTER(nll_loss_forward, DeviceType::kCuda, NllLossForwardCuda);
LS_REGISTER(nll_loss_backward, DeviceType::kCuda, NllLossBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
