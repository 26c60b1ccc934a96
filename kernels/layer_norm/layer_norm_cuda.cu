#include "kernels/cuda/norm.cuh"
#include "kernels/layer_norm/layer_norm.h"

namespace lockstep::cuda {
namespace {

void LayerNormForwardCuda(Stream stream, const Tensor& x, const Tensor& weight, const Tensor& bias,
                          double eps, const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  DispatchNorm("layer_norm", x, weight, [&]<class T, class W>(TypeTag<T>, TypeTag<W>) {
    const Tensor b = bias.defined() ? bias.To(weight.dtype()) : bias;
    NormForward<Centring::kMean, T, W>({"layer_norm_forward", x, weight}, stream,
                                       {.rows = mean.numel(),
                                        .c = x.dim(-1),
                                        .x = Data<T>(x),
                                        .weight = Data<W>(weight),
                                        .bias = DataOrNull<W>(b),
                                        .eps = static_cast<float>(eps),
                                        .y = Data<T>(y),
                                        .mean = Data<float>(mean),
                                        .rstd = Data<float>(rstd)});
  });
}

void LayerNormBackwardCuda(Stream stream, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& rstd, const Tensor& dy, const GradTarget& dx,
                           const GradTarget& dweight, const GradTarget& dbias) {
  DispatchNorm("layer_norm", x, weight, [&]<class T, class W>(TypeTag<T>, TypeTag<W>) {
    NormBackwardRows<T, W> rows{};
    rows.rows = mean.numel();
    rows.c = x.dim(-1);
    rows.x = Data<T>(x);
    rows.dy = Data<T>(dy);
    rows.weight = Data<W>(weight);
    rows.mean = Data<float>(mean);
    rows.rstd = Data<float>(rstd);
    rows.dx = DataOrNull<T>(dx.tensor);
    if (dx.accumulate) rows.added = rows.dx;
    NormBackward<Centring::kMean>({"layer_norm_backward", x, weight}, stream, rows, x.device(),
                                  {.weight = dweight, .bias = dbias});
  });
}

LS_REGISTER(layer_norm_forward, DeviceType::kCuda, LayerNormForwardCuda);
LS_REGISTER(layer_norm_backward, DeviceType::kCuda, LayerNormBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
