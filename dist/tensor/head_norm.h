// Norms of queries and keys of which ranks have a part, of each head or of all together.
#pragma once

#include <vector>

#include "dist/tensor/tensor_ranks.h"
#include "nn/rms_norm.h"

namespace lockstep::dist {

// In the place of the q_norm or k_norm of an nn::CausalSelfAttention: x [B, T, N, D], this rank's
// heads, or chunks of the sequence, to the same. The gradient of the weight, a sum over heads and
// tokens, has a partial sum for each of the ranks' parts(), added as they add: the own() ones lie
// side by side along dimension `dim` of x, 2 for heads, 0 for chunks. In the place of another
// HeadNorm a partial sum is one over that one's parts. Under NoGrad nothing is cut.
class HeadNorm : public nn::RmsNorm {
 public:
  HeadNorm(const nn::RmsNorm& replaced, TensorRanksPtr ranks, int dim);

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  struct Axis {
    TensorRanksPtr ranks;
    int dim;
  };

  // The norm of a part along the axes before `axis`, of which `weight` is a copy.
  Tensor Norm(const Tensor& x, const Tensor& weight, size_t axis) const;

  std::vector<Axis> axes_;  // the outermost first
};

// In the place of a q_norm or k_norm of all heads together (nn::QkNorm::kFull): x [B, T, C / size],
// this rank's heads, to the same; its weight is this rank's part. The mean square, and in backward
// its gradient, is a sum of parts() partial sums in f32 at least, over all ranks.
class ProjectionNorm : public nn::NormParameters<Layer> {
 public:
  ProjectionNorm(const nn::RmsNorm& replaced, TensorRanksPtr ranks);

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  const TensorRanksPtr ranks_;
};

}  // namespace lockstep::dist
