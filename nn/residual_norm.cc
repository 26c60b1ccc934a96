#include "nn/residual_norm.h"

#include "nn/init.h"
#include "nn/layer_norm.h"
#include "nn/rms_norm.h"

namespace lockstep::nn {

std::shared_ptr<Layer> MakeNorm(int64_t dim, const NormOptions& options) {
  if (options.kind == NormKind::kRmsNorm) return std::make_shared<RmsNorm>(dim, options.eps);
  return std::make_shared<LayerNorm>(dim, options.bias, options.eps);
}

ResidualNorm::ResidualNorm(int64_t dim, const NormOptions& options)
    : kind_(options.kind), eps_(options.eps) {
  LS_CHECK(dim > 0, "ResidualNorm needs a positive size, got ", dim);
  LS_CHECK(eps_ > 0, "ResidualNorm needs eps > 0, got ", eps_);
  weight_ = AddParameter("weight", {dim}, Constant(1), /*decay=*/false);
  if (options.bias && kind_ == NormKind::kLayerNorm) {
    bias_ = AddParameter("bias", {dim}, Constant(0), /*decay=*/false);
  }
}

std::pair<Tensor, Tensor> ResidualNorm::Forward(const Tensor& x, const Tensor& branch) {
  return ops::ResidualNorm(kind_, x, branch, weight_->value(), bias_ ? bias_->value() : Tensor(),
                           eps_);
}

}  // namespace lockstep::nn
