// A fully connected layer.
#pragma once

#include <memory>

#include "kernels/linear/linear.h"
#include "nn/branch.h"

namespace lockstep::nn {

struct LinearOptions {
  bool bias = true;
  Activation activation = Activation::kNone;  // of the result, fused into the GEMM
  Initializer weight_init;                    // where empty: KaimingUniform(in_features),
  Initializer bias_init;                      // as torch.nn.Linear has it for both
};

// y = activation(x weight^T + bias): x [..., in_features] -> [..., out_features].
// Parameters: weight [out_features, in_features] (decays), bias [out_features] (does not).
// As a branch it leaves the bias to the one who adds it, if it has no activation. Throws
// ArgumentError if a size is not positive.
class Linear : public BranchLayer {
 public:
  Linear(int64_t in_features, int64_t out_features, const LinearOptions& options = {});

  int64_t in_features() const { return weight_->logical_shape()[1]; }
  int64_t out_features() const { return weight_->logical_shape()[0]; }
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  // null without one

 protected:
  Tensor Forward(const Tensor& x) final;
  ops::Branch ForwardBranch(const ops::Branch& x) final;

 private:
  Activation activation_;
  std::shared_ptr<Parameter> weight_, bias_;
};

}  // namespace lockstep::nn
