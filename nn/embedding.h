// A table of vectors, one per id.
#pragma once

#include <memory>

#include "core/module.h"

namespace lockstep::nn {

// y[..., :] = weight[ids[...], :]: ids i32 or i64 [...] -> [..., dim].
// Parameter: weight [num, dim] (decays), N(0, 1) as torch.nn.Embedding unless `init` is given.
// Throws ArgumentError if a size is not positive, and on an id outside of [0, num).
class Embedding : public Layer {
 public:
  Embedding(int64_t num, int64_t dim, Initializer init = {});

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  int64_t num() const { return weight_->logical_shape()[0]; }
  // For ids [B, T]: y[b, t, :] = weight[ids[b, t], :] + positions[first_position + t, :], or
  // positions[at[b, t], :] with `at` i32 [B, T], in one pass: ops::TokenPositionEmbedding.
  virtual Tensor AddPositions(const Tensor& ids, const Tensor& positions, int64_t first_position,
                              const Tensor& at = {});

 protected:
  // With the weight of the module that this one replaces.
  explicit Embedding(std::shared_ptr<Parameter> weight);
  Tensor Forward(const Tensor& ids) override;

 private:
  std::shared_ptr<Parameter> weight_;
};

}  // namespace lockstep::nn
