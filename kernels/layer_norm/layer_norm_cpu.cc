#include "kernels/cpu/norm.h"
#include "kernels/layer_norm/layer_norm.h"

namespace lockstep::cpu {
namespace {

void LayerNormForwardCpu(Stream, const Tensor& x, const Tensor& weight, const Tensor& bias,
                         double eps, const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  DispatchFloat("layer_norm", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const int64_t c = x.dim(-1);
    const Tensor weights = weight.To(DTypeOf<A>);
    const Tensor biases = bias.defined() ? bias.To(DTypeOf<A>) : Tensor();
    NormForward<Centring::kMean, T>({.rows = mean.numel(),
                                     .c = c,
                                     .x = x.data<T>(),
                                     .w = weights.data<A>(),
                                     .b = biases.defined() ? biases.data<A>() : nullptr,
                                     .eps = static_cast<A>(eps),
                                     .y = y.data<T>(),
                                     .mean = mean.data<A>(),
                                     .rstd = rstd.data<A>()});
  });
}

void LayerNormBackwardCpu(Stream, const Tensor& x, const Tensor& weight, const Tensor& mean,
                          const Tensor& rstd, const Tensor& dy, const GradTarget& dx,
                          const GradTarget& dweight, const GradTarget& dbias) {
  DispatchFloat("layer_norm", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Tensor weights = weight.To(DTypeOf<A>);
    NormBackward<Centring::kMean, T>({.rows = mean.numel(),
                                      .c = x.dim(-1),
                                      .x = x.data<T>(),
                                      .dy = dy.data<T>(),
                                      .dsum = nullptr,
                                      .w = weights.data<A>(),
                                      .mean = mean.data<A>(),
                                      .rstd = rstd.data<A>(),
                                      .dx = dx.tensor.defined() ? dx.tensor.data<T>() : nullptr,
                                      .accumulate = dx.accumulate},
                                     dweight, dbias);
  });
}

LS_REGISTER(layer_norm_forward, DeviceType::kCpu, LayerNormForwardCpu);
LS_REGISTER(layer_norm_backward, DeviceType::kCpu, LayerNormBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
