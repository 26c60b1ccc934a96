// Brings the parts of expert-parallel parameters together outside of forward and backward.
#pragma once

#include <functional>
#include <memory>
#include <unordered_set>

#include "core/parameter.h"
#include "dist/mesh_parts.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// The axis along which each rank has an equal part of the experts of parameters [E, ...].
class ExpertExchange : public PartsAxis {
 public:
  explicit ExpertExchange(std::shared_ptr<ProcessGroup> ranks) : ranks_(std::move(ranks)) {}

  // Cuts the parameter, whose exchange is then `parts`. Throws ArgumentError unless the ranks
  // divide E.
  void Cut(const std::shared_ptr<MeshParts>& parts, Parameter& parameter);

  ProcessGroup* group() const override { return ranks_.get(); }
  bool Divides(const Parameter& parameter) const override { return cut_.contains(&parameter); }
  Tensor Gather(const Parameter& parameter, const Tensor& part) override;
  bool MakesRuns() const override { return true; }
  void ForEachRun(const Parameter& parameter, const Tensor& grad, const AddRun& add) override;

 private:
  const std::shared_ptr<ProcessGroup> ranks_;
  std::unordered_set<const Parameter*> cut_;
};

}  // namespace lockstep::dist
