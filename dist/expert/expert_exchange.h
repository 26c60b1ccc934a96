// Brings the parts of expert-parallel parameters together outside of forward and backward.
#pragma once

#include <memory>

#include "core/parameter.h"
#include "dist/process_group.h"
#include "optim/norm_parts.h"

namespace lockstep::dist {

// Of parameters [E, ...] of which each rank has an equal part of the experts. For clipping,
// optimizers that want whole matrices, and checkpoints.
class ExpertExchange : public optim::NormRuns {
 public:
  explicit ExpertExchange(std::shared_ptr<ProcessGroup> ranks) : ranks_(std::move(ranks)) {}

  // Cuts the parameter; `self` is this exchange. Throws ArgumentError unless the ranks divide E.
  void Cut(const std::shared_ptr<ExpertExchange>& self, Parameter& parameter) const;

  Tensor Gather(const Parameter& parameter, const Tensor& part) override;
  void Sum(const Tensor& values) override;
  void SumSquares(const Parameter& parameter, const Tensor& grad, const Tensor& sums) override;

 private:
  const std::shared_ptr<ProcessGroup> ranks_;
};

}  // namespace lockstep::dist
