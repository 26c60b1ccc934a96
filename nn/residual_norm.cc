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

ResidualNorm::ResidualNorm(const ResidualNorm* other)
    : kind_(other->kind_), eps_(other->eps_), weight_(other->weight_), bias_(other->bias_) {
  ShareParameter("weight", weight_);
  if (bias_) ShareParameter("bias", bias_);
}

std::pair<Tensor, Tensor> ResidualNorm::Forward(const ResidualStream& stream) {
  return Apply(stream, weight_->value(), bias_ ? bias_->value() : Tensor());
}

std::pair<Tensor, Tensor> ResidualNorm::Apply(const ResidualStream& stream, const Tensor& weight,
                                              const Tensor& bias, SamplePart part) const {
  const auto& [x, open] = stream;
  if (open.value.defined()) return ops::ResidualNorm(kind_, x, open, weight, bias, eps_, part);
  return {x, kind_ == NormKind::kRmsNorm ? ops::RmsNorm(x, weight, eps_)
                                         : ops::LayerNorm(x, weight, bias, eps_)};
}

}  // namespace lockstep::nn
