#include "nn/residual_norm.h"

#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "nn/init.h"

namespace lockstep::nn {

ResidualNorm::ResidualNorm(int64_t dim, const NormOptions& options)
    : kind_(options.kind), eps_(options.eps) {
  LS_CHECK(dim > 0, "ResidualNorm needs a positive size, got ", dim);
  LS_CHECK(eps_ > 0, "ResidualNorm needs eps > 0, got ", eps_);
  weight_ = AddParameter("weight", {dim}, Constant(1), /*decay=*/false);
  if (options.bias && kind_ == NormKind::kLayerNorm) {
    bias_ = AddParameter("bias", {dim}, Constant(0), /*decay=*/false);
  }
}

std::pair<Tensor, Tensor> ResidualNorm::Forward(const ResidualStream& stream) {
  const auto& [x, open] = stream;
  const Tensor& weight = weight_->value();
  const Tensor bias = bias_ ? bias_->value() : Tensor();
  if (open.value.defined()) return ops::ResidualNorm(kind_, x, open, weight, bias, eps_);
  return {x, kind_ == NormKind::kRmsNorm ? ops::RmsNorm(x, weight, eps_)
                                         : ops::LayerNorm(x, weight, bias, eps_)};
}

}  // namespace lockstep::nn
