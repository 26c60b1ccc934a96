#include "nn/layer_norm.h"

#include "kernels/layer_norm/layer_norm.h"
#include "nn/init.h"

namespace lockstep::nn {

LayerNorm::LayerNorm(int64_t dim, bool bias, double eps) : eps_(eps) {
  LS_CHECK(dim > 0, "LayerNorm needs a positive size, got ", dim);
  LS_CHECK(eps > 0, "LayerNorm needs eps > 0, got ", eps);
  weight_ = AddParameter("weight", {dim}, Constant(1), /*decay=*/false);
  if (bias) bias_ = AddParameter("bias", {dim}, Constant(0), /*decay=*/false);
}

Tensor LayerNorm::Forward(const Tensor& x) {
  return ops::LayerNorm(x, weight_->value(), bias_ ? bias_->value() : Tensor(), eps_);
}

}  // namespace lockstep::nn
