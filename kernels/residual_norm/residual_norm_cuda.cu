#include "kernels/cuda/norm.cuh"
#include "kernels/residual_norm/residual_norm.h"

namespace lockstep::cuda {
namespace {

void ResidualNormForwardCuda(Stream stream, const ResidualNormForwardArgs& args) {
  DispatchNorm("residual_norm", args.x, args.weight, [&](auto tag, auto weight_tag) {
    using T = typename decltype(tag)::type;
    using W = typename decltype(weight_tag)::type;
    const Tensor bias = args.bias.defined() ? args.bias.To(args.weight.dtype()) : args.bias;
    NormForwardRows<T, W> rows{};
    rows.rows = args.rstd.numel();
    rows.c = args.x.dim(-1);
    rows.x = Data<T>(args.x);
    rows.branch = Data<T>(args.branch);
    rows.sum = Data<T>(args.sum);
    rows.weight = Data<W>(args.weight);
    rows.bias = DataOrNull<W>(bias);
    rows.eps = static_cast<float>(args.eps);
    rows.y = Data<T>(args.y);
    rows.mean = DataOrNull<float>(args.mean);
    rows.rstd = Data<float>(args.rstd);
    const LaunchName name("residual_norm_forward", args.x, args.weight);
    if (args.kind == NormKind::kLayerNorm) {
      NormForward<Centring::kMean>(name, stream, rows);
    } else {
      NormForward<Centring::kNone>(name, stream, rows);
    }
  });
}

void ResidualNormBackwardCuda(Stream stream, const ResidualNormBackwardArgs& args) {
  DispatchNorm("residual_norm", args.sum, args.weight, [&](auto tag, auto weight_tag) {
    using T = typename decltype(tag)::type;
    using W = typename decltype(weight_tag)::type;
    NormBackwardRows<T, W> rows{};
    rows.rows = args.rstd.numel();
    rows.c = args.sum.dim(-1);
    rows.x = Data<T>(args.sum);
    rows.dy = Data<T>(args.dy);
    rows.dsum = Data<T>(args.dsum);
    rows.weight = Data<W>(args.weight);
    rows.mean = DataOrNull<float>(args.mean);
    rows.rstd = Data<float>(args.rstd);
    rows.dx = DataOrNull<T>(args.dx);
    const LaunchName name("residual_norm_backward", args.sum, args.weight);
    if (args.kind == NormKind::kLayerNorm) {
      NormBackward<Centring::kMean>(name, stream, rows, args.sum.device(), args.dweight,
                                    args.dbias);
    } else {
      NormBackward<Centring::kNone>(name, stream, rows, args.sum.device(), args.dweight,
                                    args.dbias);
    }
  });
}

LS_REGISTER(residual_norm_forward, DeviceType::kCuda, ResidualNormForwardCuda);
LS_REGISTER(residual_norm_backward, DeviceType::kCuda, ResidualNormBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
