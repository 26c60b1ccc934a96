// RMS normalisation, Zhang and Sennrich, "Root mean square layer normalization" (2019).
#pragma once

#include <functional>

#include "core/module.h"
#include "nn/norm_parameters.h"

namespace lockstep::nn {

// y = x / sqrt(mean(x^2) + eps) * (offset + weight) over the last dimension: x [..., dim].
// Parameter: weight [dim] = 1 - offset; it does not decay. Without a weight there is no product.
class RmsNorm : public NormParameters<Layer> {
 public:
  explicit RmsNorm(int64_t dim, double eps = 1e-5, double offset = 0, bool weight = true)
      : NormParameters(dim, {.kind = NormKind::kRmsNorm,
                             .bias = false,
                             .weight = weight,
                             .eps = eps,
                             .offset = offset}) {}

 protected:
  explicit RmsNorm(std::reference_wrapper<const RmsNorm> other) : NormParameters(&other.get()) {}
  Tensor Forward(const Tensor& x) override { return Norm(options(), x, weight_value(), {}); }
};

}  // namespace lockstep::nn
