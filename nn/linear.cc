#include "nn/linear.h"

#include "nn/init.h"

namespace lockstep::nn {

template <class Interface>
LinearParameters<Interface>::LinearParameters(int64_t in_features, int64_t out_features,
                                              const LinearOptions& options) {
  LS_CHECK(in_features > 0 && out_features > 0, "Linear needs positive sizes, got ", in_features,
           " inputs and ", out_features, " outputs");
  const auto init = [&](const Initializer& given) {
    return given ? given : KaimingUniform(in_features);
  };
  weight_ = this->AddParameter("weight", {out_features, in_features}, init(options.weight_init),
                               /*decay=*/true);
  if (options.bias) {
    bias_ = this->AddParameter("bias", {out_features}, init(options.bias_init), /*decay=*/false);
  }
}

template <class Interface>
LinearParameters<Interface>::LinearParameters(std::shared_ptr<Parameter> weight,
                                              std::shared_ptr<Parameter> bias)
    : weight_(std::move(weight)), bias_(std::move(bias)) {
  this->ShareParameter("weight", weight_);
  if (bias_) this->ShareParameter("bias", bias_);
}

template class LinearParameters<Layer>;
template class LinearParameters<BranchLayer>;

Linear::Linear(int64_t in_features, int64_t out_features, const LinearOptions& options)
    : LinearParameters(in_features, out_features, options), activation_(options.activation) {}

Linear::Linear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias,
               Activation activation)
    : LinearParameters(std::move(weight), std::move(bias)), activation_(activation) {}

Tensor Linear::Forward(const Tensor& x) {
  return ops::Linear(x, *weight(), bias() ? bias()->value() : Tensor(), activation_);
}

BranchLinear::BranchLinear(int64_t in_features, int64_t out_features, const LinearOptions& options)
    : LinearParameters(in_features, out_features, options) {
  LS_CHECK(options.activation == Activation::kNone,
           "BranchLinear leaves its bias to others, so it cannot have an activation: use Linear");
}

BranchLinear::BranchLinear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias)
    : LinearParameters(std::move(weight), std::move(bias)) {}

ops::Branch BranchLinear::Forward(ops::Branch x) {
  ops::Branch y = ops::Linear(ops::Complete(x), *weight());
  if (bias()) y.bias = OpenBias(*bias());
  return y;
}

Tensor OpenBias(const Parameter& bias) {
  const Tensor& b = bias.value();
  return b.dtype() == DType::kF64 || b.dtype() == DType::kF32 ? b.Clone() : b.To(DType::kF32);
}

}  // namespace lockstep::nn
