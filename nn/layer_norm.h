// Layer normalisation, Ba, Kiros and Hinton, "Layer normalization" (2016).
#pragma once

#include <memory>

#include "core/module.h"

namespace lockstep::nn {

// y = (x - mean) / sqrt(var + eps) * weight + bias over the last dimension: x [..., dim].
// Parameters: weight [dim] = 1, bias [dim] = 0 (unless left out); neither decays.
class LayerNorm : public Layer {
 public:
  explicit LayerNorm(int64_t dim, bool bias = true, double eps = 1e-5);

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  // null without one

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  double eps_;
  std::shared_ptr<Parameter> weight_, bias_;
};

}  // namespace lockstep::nn
