#include "nn/linear.h"

#include "nn/init.h"

namespace lockstep::nn {

Linear::Linear(int64_t in_features, int64_t out_features, const LinearOptions& options)
    : activation_(options.activation) {
  LS_CHECK(in_features > 0 && out_features > 0, "Linear needs positive sizes, got ", in_features,
           " inputs and ", out_features, " outputs");
  const auto init = [&](const Initializer& given) {
    return given ? given : KaimingUniform(in_features);
  };
  weight_ = AddParameter("weight", {out_features, in_features}, init(options.weight_init),
                         /*decay=*/true);
  if (options.bias) {
    bias_ = AddParameter("bias", {out_features}, init(options.bias_init), /*decay=*/false);
  }
}

Tensor Linear::Forward(const Tensor& x) {
  return ops::Linear(x, weight_->value(), bias_ ? bias_->value() : Tensor(), activation_);
}

ops::Branch Linear::ForwardBranch(const ops::Branch& x) {
  if (activation_ != Activation::kNone) return Forward(ops::Complete(x));
  ops::Branch y = ops::Linear(ops::Complete(x), weight_->value());
  if (bias_) y.bias = bias_->value();
  return y;
}

}  // namespace lockstep::nn
