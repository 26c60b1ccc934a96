// Fully connected layers.
#pragma once

#include <memory>

#include "kernels/linear/linear.h"
#include "nn/stream/residual_stream.h"

namespace lockstep::nn {

struct LinearOptions {
  bool bias = true;
  Activation activation = Activation::kNone;  // of the result, fused into the GEMM
  Initializer weight_init{};                  // where empty: KaimingUniform(in_features),
  Initializer bias_init{};                    // as torch.nn.Linear has it for both
};

// What Linear and BranchLinear share. Parameters: weight [out_features, in_features] (decays), bias
// [out_features] (does not). Throws ArgumentError if a size is not positive.
template <class Interface>
class LinearParameters : public Interface {
 public:
  int64_t in_features() const { return weight_->logical_shape()[1]; }
  int64_t out_features() const { return weight_->logical_shape()[0]; }
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  // null without one

 protected:
  LinearParameters(int64_t in_features, int64_t out_features, const LinearOptions& options);
  // With the parameters of another module; bias may be null.
  LinearParameters(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias);

 private:
  std::shared_ptr<Parameter> weight_, bias_;
};

// y = activation(x weight^T + bias): x [..., in_features] -> [..., out_features].
class Linear : public LinearParameters<Layer> {
 public:
  Linear(int64_t in_features, int64_t out_features, const LinearOptions& options = {});
  // With the parameters of another module; bias may be null.
  Linear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias,
         Activation activation = Activation::kNone);

  Activation activation() const { return activation_; }

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  Activation activation_;
};

// The last product of a branch: x weight^T, with a copy of the bias, f32 at least, which is left to
// the module that adds the branch to the stream. Throws ArgumentError for options with an
// activation.
class BranchLinear : public LinearParameters<BranchLayer> {
 public:
  BranchLinear(int64_t in_features, int64_t out_features, const LinearOptions& options = {});
  // With the parameters of another module; bias may be null.
  BranchLinear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias);

 protected:
  ops::Branch Forward(ops::Branch x) override;
};

// A copy of a bias, in f32 at least, to be left open in a branch, so that the gradient of a 16-bit
// bias reaches the parameter unrounded.
Tensor OpenBias(const Parameter& bias);

}  // namespace lockstep::nn
