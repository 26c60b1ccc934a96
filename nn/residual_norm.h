// The residual connection together with the normalisation after it.
#pragma once

#include <memory>
#include <utility>

#include "nn/residual_stream.h"

namespace lockstep::nn {

struct NormOptions {
  NormKind kind = NormKind::kLayerNorm;
  bool bias = true;  // of a layer norm; an RMS norm has none
  double eps = 1e-5;
};

// stream -> {Complete(stream), norm(Complete(stream))}, both [..., dim], in one pass, with the bias
// and the dropout that the branch left open; where nothing is to be added {x, norm(x)}.
using ResidualNormLayer = ModuleOf<std::pair<Tensor, Tensor>(const ResidualStream&)>;

// Parameters are those of the norm: weight [dim] = 1 and, if it has one, bias [dim] = 0; neither
// decays. Throws ArgumentError unless dim and eps are positive.
class ResidualNorm : public ResidualNormLayer {
 public:
  ResidualNorm(int64_t dim, const NormOptions& options);

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  // null without one
  // What forward does, with values in the place of the parameters, such as their copies for a part
  // of the sequence; the bias may be undefined. `part` is that of each sample which the stream has.
  std::pair<Tensor, Tensor> Apply(const ResidualStream& stream, const Tensor& weight,
                                  const Tensor& bias, SamplePart part = {}) const;

 protected:
  // With the parameters of another norm, in whose place this one is.
  explicit ResidualNorm(const ResidualNorm* other);
  std::pair<Tensor, Tensor> Forward(const ResidualStream& stream) override;

 private:
  NormKind kind_;
  double eps_;
  std::shared_ptr<Parameter> weight_, bias_;
};

}  // namespace lockstep::nn
