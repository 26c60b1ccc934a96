// RMS normalisation, Zhang and Sennrich, "Root mean square layer normalization" (2019).
#pragma once

#include <memory>

#include "core/module.h"

namespace lockstep::nn {

// y = x / sqrt(mean(x^2) + eps) * weight over the last dimension: x [..., dim].
// Parameter: weight [dim] = 1; it does not decay.
class RmsNorm : public Layer {
 public:
  explicit RmsNorm(int64_t dim, double eps = 1e-5);

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  double eps() const { return eps_; }

 protected:
  // With the parameter of another norm, in whose place this one is.
  RmsNorm(std::shared_ptr<Parameter> weight, double eps);
  Tensor Forward(const Tensor& x) override;

 private:
  double eps_;
  std::shared_ptr<Parameter> weight_;
};

}  // namespace lockstep::nn
