#include "kernels/cpu/norm.h"
#include "kernels/rms_norm/rms_norm.h"

namespace lockstep::cpu {
namespace {

void RmsNormForwardCpu(Stream, const Tensor& x, const Tensor& weight, double eps, const Tensor& y,
                       const Tensor& rstd) {
  DispatchFloat("rms_norm", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Tensor weights = weight.defined() ? weight.To(DTypeOf<A>) : weight;
    NormForward<Centring::kNone, T>({.rows = rstd.numel(),
                                     .c = x.dim(-1),
                                     .x = x.data<T>(),
                                     .w = weight.defined() ? weights.data<A>() : nullptr,
                                     .b = nullptr,
                                     .eps = static_cast<A>(eps),
                                     .y = y.data<T>(),
                                     .mean = nullptr,
                                     .rstd = rstd.data<A>()});
  });
}

void RmsNormBackwardCpu(Stream, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                        const Tensor& dy, const GradTarget& dx, const GradTarget& dweight) {
  DispatchFloat("rms_norm", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Tensor weights = weight.defined() ? weight.To(DTypeOf<A>) : weight;
    NormBackward<Centring::kNone, T>({.rows = rstd.numel(),
                                      .c = x.dim(-1),
                                      .x = x.data<T>(),
                                      .dy = dy.data<T>(),
                                      .dsum = nullptr,
                                      .w = weight.defined() ? weights.data<A>() : nullptr,
                                      .mean = nullptr,
                                      .rstd = rstd.data<A>(),
                                      .dx = dx.tensor.defined() ? dx.tensor.data<T>() : nullptr,
                                      .accumulate = dx.accumulate},
                                     dweight, {});
  });
}

LS_REGISTER(rms_norm_forward, DeviceType::kCpu, RmsNormForwardCpu);
LS_REGISTER(rms_norm_backward, DeviceType::kCpu, RmsNormBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
