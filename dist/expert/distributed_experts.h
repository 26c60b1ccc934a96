// The experts of a rank, where they are split across ranks.
#pragma once

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
  const std::shared_ptr<Parameter>& c_fc() const { return c_fc_->weight(); }
  const std::shared_ptr<Parameter>& c_proj() const { return c_proj_->weight(); }

  // What forwards from now on read instead of the weights: copies of each (FanOut), one for the
  // rows of each rank of the group. Empty: the weights, whose gradients are then those of all rows,
  // added as the fixed order adds the ranks' micro-batches.
  struct Copies {
    std::vector<Tensor> c_fc, c_proj;
  };
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

  const std::shared_ptr<ProcessGroup> group_;
  const int64_t of_sequence_;
  std::optional<Begun> begun_;
  Copies copies_;
  const std::shared_ptr<nn::Experts> experts_;
  const std::shared_ptr<nn::GroupedLinear> c_fc_, c_proj_;
  Child<nn::ExpertsLayer> place_;  // for their names
};

}  // namespace lockstep::dist
