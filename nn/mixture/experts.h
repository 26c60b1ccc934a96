// The experts of a mixture: MLPs whose weights are stacked.
#pragma once

#include <memory>

#include "core/module.h"
#include "nn/transformer_options.h"

namespace lockstep::nn {

// rows [R, C], sorted by expert, and offsets i32 [E + 1] (ExpertOrder::offsets) -> [R, C].
class ExpertsLayer : public ModuleOf<Tensor(const Tensor& rows, const Tensor& offsets)> {
 public:
  // Begins what can run while its caller computes something else, such as sending the rows to other
  // ranks. A forward with the same arguments must follow; a forward without it does everything
  // itself.
  virtual void Begin(const Tensor& /*rows*/, const Tensor& /*offsets*/) {}
};

// y = x weight[e]^T for the rows of each expert (ops::GroupedLinear). Parameters: weight
// [n_expert, out, in] (decays).
class GroupedLinear : public ExpertsLayer {
 public:
  GroupedLinear(int64_t n_expert, int64_t in_features, int64_t out_features, Initializer init);
  // With the parameter of another module.
  explicit GroupedLinear(std::shared_ptr<Parameter> weight);

  int64_t n_expert() const { return weight_->logical_shape()[0]; }
  int64_t in_features() const { return weight_->logical_shape()[2]; }
  int64_t out_features() const { return weight_->logical_shape()[1]; }
  const std::shared_ptr<Parameter>& weight() const { return weight_; }

 protected:
  Tensor Forward(const Tensor& rows, const Tensor& offsets) override;

 private:
  std::shared_ptr<Parameter> weight_;
};

// c_proj(activation(c_fc(rows))), each with the weights of a row's expert, without biases.
// Children: c_fc (n_embd -> mixture.n_inner; kSwiGlu: -> twice that, the gate before up, as one
// product) and c_proj, GroupedLinears.
class Experts : public ExpertsLayer {
 public:
  // Reads n_embd, n_inner, activation, init_std, residual_std and mixture.
  explicit Experts(const TransformerOptions& options);

  Child<ExpertsLayer>& c_fc() { return c_fc_; }
  Child<ExpertsLayer>& c_proj() { return c_proj_; }
  // The activation between the two, since a grouped product has none of its own.
  Tensor Activate(const Tensor& inner) const;

 protected:
  Tensor Forward(const Tensor& rows, const Tensor& offsets) override;

 private:
  MlpActivation activation_;
  Child<ExpertsLayer> c_fc_, c_proj_;
};

}  // namespace lockstep::nn
