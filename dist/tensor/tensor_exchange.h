// Brings the parts of tensor-parallel parameters together outside of forward and backward.
#pragma once

#include <unordered_map>

#include "core/parameter.h"
#include "dist/tensor/tensor_ranks.h"
#include "optim/norm_parts.h"

namespace lockstep::dist {

// For clipping, optimizers that want whole matrices, and checkpoints.
class TensorExchange : public optim::NormParts {
 public:
  explicit TensorExchange(TensorRanksPtr ranks) : ranks_(std::move(ranks)) {}

  // Cuts the parameter along a dimension, whose `segments` (empty: all of it) are each cut. The
  // second time, for a tied weight, it must be the same cut. `self` is this exchange. Throws
  // ArgumentError unless the parts of the sums, TensorRanks::parts(), divide the segments.
  void Cut(const std::shared_ptr<TensorExchange>& self, Parameter& parameter, int dim,
           const std::vector<int64_t>& segments);

  Tensor Gather(const Parameter& parameter, const Tensor& part) override;
  void Sum(const Tensor& values) override;
  Parts PartsOf(const Parameter& parameter) const override;
  Tensor PartOf(const Parameter& parameter, const Tensor& grad, int64_t j) const override;

 private:
  struct Place {
    int dim;
    std::vector<int64_t> segments;  // of the whole
  };

  const TensorRanksPtr ranks_;
  std::unordered_map<const Parameter*, Place> places_;
};

}  // namespace lockstep::dist
