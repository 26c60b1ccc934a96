// Brings the parts of expert-parallel parameters together outside of forward and backward.
#pragma once

#include <memory>
#include <unordered_set>

#include "core/parameter.h"
#include "dist/mesh_parts.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Whether the parameter is a weight of experts that are split across data-parallel ranks
// (ShareExperts), rather than only across ranks that compute the same sequences.
bool IsOfDistributedExperts(const Parameter& parameter);

// The axis along which each rank has an equal part of the experts of parameters [E, ...]: of all of
// them, or of this rank's tensor-parallel part.
class ExpertExchange : public PartsAxis {
 public:
  // `sequence`: those of the ranks that compute this rank's sequences together; null: this one.
  explicit ExpertExchange(std::shared_ptr<ProcessGroup> ranks,
                          std::shared_ptr<ProcessGroup> sequence = nullptr)
      : ranks_(std::move(ranks)), sequence_(std::move(sequence)) {}

  // Cuts the parameter, whose exchange is then `parts`. One that this rank does not hold is only
  // noted. Throws ArgumentError unless the ranks divide its experts.
  void Cut(const std::shared_ptr<MeshParts>& parts, Parameter& parameter);
  // From now on the ranks, except those of a sequence, belong to another axis, which shards all
  // parameters: that axis knows of copies, and makes the sums.
  void JoinRanges() { joins_ranges_ = true; }

  ProcessGroup* group() const override { return ranks_.get(); }
  bool Divides(const Parameter& parameter) const override { return cut_.contains(&parameter); }
  std::pair<int64_t, int64_t> CopyOf(const Parameter& parameter) const override;
  Tensor Gather(const Parameter& parameter, const Tensor& part) override;
  void Sum(const Tensor& values) override;
  bool MakesRuns() const override { return true; }
  bool TakesRanges(const Parameter& parameter, const VirtualParts& parts) const override;
  void ForEachRun(const Parameter& parameter, const VirtualParts& parts, const Tensor& values,
                  int64_t begin, const AddRun& add) override;

 private:
  const std::shared_ptr<ProcessGroup> ranks_, sequence_;
  std::unordered_set<const Parameter*> cut_;
  bool joins_ranges_ = false;
};

}  // namespace lockstep::dist
