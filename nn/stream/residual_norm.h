// Norms of the residual connection: of the stream with its branch, and of a branch by itself.
#pragma once

#include <utility>

#include "nn/norm_parameters.h"
#include "nn/stream/residual_stream.h"

namespace lockstep::nn {

// stream -> {Complete(stream), norm(Complete(stream))}, both [..., dim], in one pass, with the bias
// and the dropout that the branch left open; if nothing is to be added, {x, norm(x)}.
using ResidualNormLayer = ModuleOf<std::pair<Tensor, Tensor>(const ResidualStream&)>;

// Parameters are those of the norm (NormParameters).
class ResidualNorm : public NormParameters<ResidualNormLayer> {
 public:
  ResidualNorm(int64_t dim, const NormOptions& options) : NormParameters(dim, options) {}

  // What forward does, with these values in place of the parameters, such as their copies for a
  // part of the sequence; undefined where there is no such parameter. `part` is the part of each
  // sample that the stream holds.
  std::pair<Tensor, Tensor> Apply(const ResidualStream& stream, const Tensor& weight,
                                  const Tensor& bias, SamplePart part = {}) const;

 protected:
  explicit ResidualNorm(const ResidualNorm* other) : NormParameters(other) {}
  std::pair<Tensor, Tensor> Forward(const ResidualStream& stream) override;
};

// What is added to the stream where a branch ends in a norm: branch -> dropout(norm(value + bias)),
// complete, with the bias and the dropout that the branch left open. Parameters are those of the
// norm.
class BranchNorm : public NormParameters<BranchLayer> {
 public:
  BranchNorm(int64_t dim, const NormOptions& options) : NormParameters(dim, options) {}

  // As ResidualNorm::Apply.
  Tensor Apply(const ops::Branch& branch, const Tensor& weight, const Tensor& bias,
               SamplePart part = {}) const;

 protected:
  explicit BranchNorm(const BranchNorm* other) : NormParameters(other) {}
  ops::Branch Forward(ops::Branch branch) override;
};

}  // namespace lockstep::nn
