// The residual connection together with the normalisation after it.
#pragma once

#include <memory>
#include <utility>

#include "core/module.h"
#include "kernels/residual_norm/residual_norm.h"

namespace lockstep::nn {

struct NormOptions {
  NormKind kind = NormKind::kLayerNorm;
  bool bias = true;  // of a layer norm; an RMS norm has none
  double eps = 1e-5;
};

// (x, branch) -> {x + branch, norm(x + branch)}, all [..., dim], in one pass, with the bias and the
// dropout that the branch left open; without a branch (its value is undefined) {x, norm(x)}.
using ResidualNormLayer = ModuleOf<std::pair<Tensor, Tensor>(const Tensor&, const ops::Branch&)>;

// Parameters are those of the norm: weight [dim] = 1 and, if it has one, bias [dim] = 0; neither
// decays. Throws ArgumentError unless dim and eps are positive.
class ResidualNorm : public ResidualNormLayer {
 public:
  ResidualNorm(int64_t dim, const NormOptions& options);

 protected:
  std::pair<Tensor, Tensor> Forward(const Tensor& x, const ops::Branch& branch) override;

 private:
  NormKind kind_;
  double eps_;
  std::shared_ptr<Parameter> weight_, bias_;
};

}  // namespace lockstep::nn
