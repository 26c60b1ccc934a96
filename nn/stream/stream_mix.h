// The start of a residual stream, mixed in again before each block.
#pragma once

#include <memory>
#include <utility>

#include "nn/stream/residual_norm.h"

namespace lockstep::nn {

// stream -> {x, a x + b x0}, both [..., C], where x = Complete(stream), x0 = stream.x0, and a and b
// are learned numbers, as in Jordan et al., "modded-nanogpt" (2024). Parameters: a [1] = 1 and b
// [1] = 0; neither decays. Throws ArgumentError for a stream without x0.
class StreamMix : public ResidualNormLayer {
 public:
  StreamMix();

  const std::shared_ptr<Parameter>& a() const { return a_; }
  const std::shared_ptr<Parameter>& b() const { return b_; }
  // What forward does, with these values in place of the parameters. `part` is the part of each
  // sample that the stream holds.
  static std::pair<Tensor, Tensor> Apply(const ResidualStream& stream, const Tensor& a,
                                         const Tensor& b, SamplePart part = {});

 protected:
  // With the parameters of the module that this one replaces.
  explicit StreamMix(const StreamMix* other);
  std::pair<Tensor, Tensor> Forward(const ResidualStream& stream) override;

 private:
  std::shared_ptr<Parameter> a_, b_;
};

}  // namespace lockstep::nn
