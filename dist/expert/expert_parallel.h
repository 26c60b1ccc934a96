// Data parallelism of a model whose experts are split across ranks.
#pragma once

#include <optional>
#include <string>

#include "core/module.h"
#include "dist/data_parallel/data_ranks.h"
#include "dist/data_parallel/reducer.h"

namespace lockstep::dist {

// The micro-batches of each rank, where the experts are split across `experts` neighbouring ranks:
// in every micro-step, the gradients that such a group's micro-batches give an expert are a subtree
// of the fixed-order sum, and are added by the rank that has the expert (SegmentedLinear). The sums
// are then leaves of the same sum over fewer micro-batches. With 8 micro-batches, 4 ranks and 2
// experts: rank 0 computes 0 and 2, rank 1 4 and 6, rank 2 1 and 3, rank 3 5 and 7.
//
// Throws ArgumentError unless `experts` divides `ranks`, and `ranks` the micro-batches.
Assignment AssignForExperts(int64_t micro_batches, int64_t ranks, int64_t experts, bool ordered);

// As DataParallel, for a model after ShareExperts: what ranks have whole is summed over all of
// them, the weights of experts over the ranks that have the same ones. The two must not be mixed
// up: an expert sees the samples of all ranks of its group already.
//
// With GradientSum::kOrdered, the bits are those of one process; as a rank's own micro-batches are
// then not a subtree of the sum, it sends the gradients of whole weights once for each of its
// micro-steps.
class ExpertParallel : public DataRanks, public BackwardObserver {
 public:
  // Collective. `data`: all ranks. `copies`: those that have the same experts, rank / experts of
  // `data` each (the axis "edp" of a Mesh); null: only this rank. Groups and module outlive it, the
  // weights have memory. As in DataParallel, ranks begin with rank 0's weights. `options`: except
  // the assignment. `control` as there. Throws ArgumentError if ShareExperts does not fit.
  ExpertParallel(ProcessGroup* data, ProcessGroup* copies, Module& module,
                 ReducerOptions options = {}, std::shared_ptr<ProcessGroup> control = nullptr);
  ~ExpertParallel() override { LeaveControl(); }

  const std::vector<int64_t>& micro_order() const override { return whole_.micro_order(); }
  int64_t micro_batches() const override { return whole_.micro_batches(); }
  void BeginMicroBatch(bool last) override;
  BackwardObserver* ObserveOnlyGiven() override;
  const CommunicationTimes& times() const override;
  void CheckWeights(const std::string& when) override;
  std::string LocateNonFinite(int64_t ago = 0) override;

  void OnBegin(const BackwardPlan& plan) override;
  void OnLeafReady(Leaf& leaf) override;
  void OnEnd() override;
  void OnError() noexcept override;

 private:
  static Reducer MakeWhole(ProcessGroup& data, ProcessGroup* copies, Module& module,
                           ReducerOptions options);

  ProcessGroup* const copies_;
  Module& module_;
  Reducer whole_, experts_;
  std::optional<Reducer::NoSync> whole_no_sync_, experts_no_sync_;
  mutable CommunicationTimes times_;
};

}  // namespace lockstep::dist
