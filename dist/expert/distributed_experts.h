// The experts of a rank, where they are split across ranks.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/expert/exchange_rows.h"
#include "dist/expert/segmented_linear.h"
#include "nn/mixture/experts.h"

namespace lockstep::dist {

// In the place of an nn::Experts, whose parameters are this rank's experts': ShareExperts puts it
// there. rows [R, C] and offsets of all experts -> [R, C]; other ranks compute some of the result.
// Collective over the group. The host waits for the loads.
class DistributedExperts : public nn::ExpertsLayer {
 public:
  // Each sequence is computed by `of_sequence` neighbouring ranks of the group together. `path`: of
  // the experts, for errors.
  DistributedExperts(const std::shared_ptr<nn::Experts>& experts,
                     std::shared_ptr<ProcessGroup> group, int64_t of_sequence,
                     const std::string& path);

  const ProcessGroup& group() const { return *group_; }
  int64_t size() const { return group_->size(); }
  int64_t of_sequence() const { return of_sequence_; }
  // Of c_fc and c_proj, and of their adapters.
  std::vector<std::shared_ptr<Parameter>> weights() const { return experts_->Parameters(); }

  // What forwards from now on read instead of these weights: copies of each (FanOut), one for the
  // rows of each rank of the group. Others' gradients are those of all rows, added as the fixed
  // order adds the ranks' micro-batches.
  using Copies = std::map<const Parameter*, std::vector<Tensor>>;
  void Read(Copies copies) { copies_ = std::move(copies); }

  void Begin(const Tensor& rows, const Tensor& offsets) override;

 protected:
  Tensor Forward(const Tensor& rows, const Tensor& offsets) override;

 private:
  struct Begun {
    RowCounts counts;
    ExpertSegments segments;
    RowExchange rows;
  };
  // How many rows come from which rank, and for which of this rank's experts.
  std::pair<RowCounts, ExpertSegments> Meet(const Tensor& rows, const Tensor& offsets) const;
  // The product of a child of `experts`, or of one with an adapter.
  Tensor Multiply(Child<nn::ExpertsLayer>& child, const Tensor& rows,
                  const ExpertSegments& segments) const;

  const std::shared_ptr<ProcessGroup> group_;
  const int64_t of_sequence_;
  std::optional<Begun> begun_;
  Copies copies_;
  const std::shared_ptr<nn::Experts> experts_;
  Child<nn::ExpertsLayer> place_;  // for their names
};

}  // namespace lockstep::dist
