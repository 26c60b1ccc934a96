// The weight and the bias of a norm, and their use.
#pragma once

#include <memory>

#include "core/module.h"
#include "kernels/residual_norm/residual_norm.h"
#include "nn/init.h"

namespace lockstep::nn {

struct NormOptions {
  NormKind kind = NormKind::kLayerNorm;
  bool bias = true;    // of a layer norm; an RMS norm has none
  bool weight = true;  // an RMS norm may have none
  double eps = 1e-5;
  // A norm multiplies by offset + weight. With 1, as in Gemma, the weight begins at 0, so that 16
  // bits round its distance from 1.
  double offset = 0;
};

// What a norm multiplies by: the weight, or offset + weight, f32 at least; undefined without one.
Tensor WithOffset(const Tensor& weight, double offset);
// The norm of x [..., C]; bias and, of an RMS norm, weight may be undefined.
Tensor Norm(const NormOptions& options, const Tensor& x, const Tensor& weight, const Tensor& bias);

// What norms have in common. Parameters, each if it has one: weight [dim] = 1 - offset and bias
// [dim] = 0; neither decays. Throws ArgumentError unless dim and eps are positive, and for a layer
// norm without a weight.
template <class Interface>
class NormParameters : public Interface {
 public:
  const NormOptions& options() const { return options_; }
  // Null without one.
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  const std::shared_ptr<Parameter>& bias() const { return bias_; }

 protected:
  NormParameters(int64_t dim, const NormOptions& options) : options_(options) {
    LS_CHECK(dim > 0, "a norm needs a positive size, got ", dim);
    LS_CHECK(options.eps > 0, "a norm needs eps > 0, got ", options.eps);
    LS_CHECK(options.weight || options.kind == NormKind::kRmsNorm,
             "a layer norm needs a weight: use an RMS norm");
    if (options.weight) {
      weight_ = this->AddParameter("weight", {dim}, Constant(1 - options.offset), /*decay=*/false);
    }
    if (options.bias && options.kind == NormKind::kLayerNorm) {
      bias_ = this->AddParameter("bias", {dim}, Constant(0), /*decay=*/false);
    }
  }
  // With the parameters of the norm that this one replaces.
  explicit NormParameters(const NormParameters* other)
      : options_(other->options_), weight_(other->weight_), bias_(other->bias_) {
    if (weight_) this->ShareParameter("weight", weight_);
    if (bias_) this->ShareParameter("bias", bias_);
  }
  // Undefined without one.
  Tensor weight_value() const { return weight_ ? weight_->value() : Tensor(); }
  Tensor bias_value() const { return bias_ ? bias_->value() : Tensor(); }

 private:
  NormOptions options_;
  std::shared_ptr<Parameter> weight_, bias_;
};

}  // namespace lockstep::nn
