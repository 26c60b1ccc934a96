#include "kernels/norm_cpu.h"
#include "kernels/residual_norm/residual_norm.h"

namespace lockstep::cpu {
namespace {

void ResidualNormForwardCpu(Stream, const ResidualNormForwardArgs& args) {
  DispatchFloat("residual_norm", args.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Acc<T>;
    const bool centred = args.kind == NormKind::kLayerNorm;
    const Tensor weights = args.weight.To(DTypeOf<A>);
    const Tensor biases = args.bias.defined() ? args.bias.To(DTypeOf<A>) : Tensor();
    const NormForwardRows<T> rows{.rows = args.rstd.numel(),
                                  .c = args.x.dim(-1),
                                  .x = args.x.data<T>(),
                                  .branch = args.branch.data<T>(),
                                  .sum = args.sum.data<T>(),
                                  .w = weights.data<A>(),
                                  .b = biases.defined() ? biases.data<A>() : nullptr,
                                  .eps = static_cast<A>(args.eps),
                                  .y = args.y.data<T>(),
                                  .mean = centred ? args.mean.data<A>() : nullptr,
                                  .rstd = args.rstd.data<A>()};
    if (centred) {
      NormForward<Centring::kMean>(rows);
    } else {
      NormForward<Centring::kNone>(rows);
    }
  });
}

void ResidualNormBackwardCpu(Stream, const ResidualNormBackwardArgs& args) {
  DispatchFloat("residual_norm", args.sum.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Acc<T>;
    const bool centred = args.kind == NormKind::kLayerNorm;
    const Tensor weights = args.weight.To(DTypeOf<A>);
    const NormBackwardRows<T> rows{.rows = args.rstd.numel(),
                                   .c = args.sum.dim(-1),
                                   .x = args.sum.data<T>(),
                                   .dy = args.dy.data<T>(),
                                   .dsum = args.dsum.data<T>(),
                                   .w = weights.data<A>(),
                                   .mean = centred ? args.mean.data<A>() : nullptr,
                                   .rstd = args.rstd.data<A>(),
                                   .dx = args.dx.defined() ? args.dx.data<T>() : nullptr,
                                   .accumulate = false};
    if (centred) {
      NormBackward<Centring::kMean>(rows, args.dweight, args.dbias);
    } else {
      NormBackward<Centring::kNone>(rows, args.dweight, args.dbias);
    }
  });
}

LS_REGISTER(residual_norm_forward, DeviceType::kCpu, ResidualNormForwardCpu);
LS_REGISTER(residual_norm_backward, DeviceType::kCpu, ResidualNormBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
