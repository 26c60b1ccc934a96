#include "kernels/cuda/norm.cuh"
#include "kernels/rms_norm/rms_norm.h"

namespace lockstep::cuda {
namespace {

void RmsNormForwardCuda(Stream stream, const Tensor& x, const Tensor& weight, double eps,
                        const Tensor& y, const Tensor& rstd) {
  DispatchRmsNorm("rms_norm", x, weight, [&]<class T, class W>(TypeTag<T>, TypeTag<W>) {
    NormForwardRows<T, W> rows{};
    rows.rows = rstd.numel();
    rows.c = x.dim(-1);
    rows.x = Data<T>(x);
    rows.weight = WeightData<W>(weight);
    rows.eps = static_cast<float>(eps);
    rows.y = Data<T>(y);
    rows.rstd = Data<float>(rstd);
    NormForward<Centring::kNone>({"rms_norm_forward", x, weight}, stream, rows);
  });
}

void RmsNormBackwardCuda(Stream stream, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& dy, const GradTarget& dx, const GradTarget& dweight) {
  DispatchRmsNorm("rms_norm", x, weight, [&]<class T, class W>(TypeTag<T>, TypeTag<W>) {
    NormBackwardRows<T, W> rows{};
    rows.rows = rstd.numel();
    rows.c = x.dim(-1);
    rows.x = Data<T>(x);
    rows.dy = Data<T>(dy);
    rows.weight = WeightData<W>(weight);
    rows.rstd = Data<float>(rstd);
    rows.dx = DataOrNull<T>(dx.tensor);
    if (dx.accumulate) rows.added = rows.dx;
    NormBackward<Centring::kNone>({"rms_norm_backward", x, weight}, stream, rows, x.device(),
                                  {.weight = dweight});
  });
}

LS_REGISTER(rms_norm_forward, DeviceType::kCuda, RmsNormForwardCuda);
LS_REGISTER(rms_norm_backward, DeviceType::kCuda, RmsNormBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
