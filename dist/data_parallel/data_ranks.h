// The ranks across which the samples of a step are partitioned, as a training loop sees them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dist/data_parallel/bucket_lanes.h"
#include "dist/process_group.h"

namespace lockstep {
class BackwardObserver;
class Parameter;
namespace optim {
class Optimizer;
class TrainingStep;
}  // namespace optim
}  // namespace lockstep

namespace lockstep::dist {

// From now on `observer` sees only backwards that it is given to.
void StopObserving(BackwardObserver* observer,
                   std::span<const std::shared_ptr<Parameter>> parameters);

// What DataParallel, FullyShard and DiLoCo have in common. But for DiLoCo, ranks sum the gradients
// of each step, and all make the same update.
class DataRanks {
 public:
  virtual ~DataRanks() = default;
  DataRanks(const DataRanks&) = delete;
  DataRanks& operator=(const DataRanks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool is_main() const { return rank() == 0; }

  // This rank's micro-batches of a step, of micro_batches() on all ranks, in the order in which it
  // must compute them.
  virtual const std::vector<int64_t>& micro_order() const = 0;
  virtual int64_t micro_batches() const = 0;
  // Backward of one of this rank's micro-batches, once for each of micro_order(). `loss`: the sum
  // of the losses of its samples (or tokens), of one element; `samples`: how many these are. The
  // step's gradient is then that of the mean over the samples of all its micro-batches, on all
  // ranks (updates_apart: on this one); their number is returned, and is the same for all
  // micro-batches of the step.
  //   loss_sum += loss.Item() / parallel.Backward(loss, samples, training);
  // Where this rank's micro-batches have different numbers of samples, `of_step` is their sum, to
  // be given with each. Where the reducer's bits do not depend on the ranks, nor do these: 1 /
  // (samples of all) enters at the root gradient, and is known before the first backward.
  //
  // Collective in the step's first micro-batch: a rank that has run out of data gives a sum of 0
  // samples. `training`: what BeginStep returned. `loss` is f32 or f64. Throws ArgumentError if the
  // numbers do not fit each other, or if the step has more micro-batches than micro_order(); and
  // what lockstep::Backward throws.
  double Backward(const Tensor& loss, int64_t samples, const optim::TrainingStep& training,
                  std::optional<int64_t> of_step = {});
  // For loops that call lockstep::Backward with a root gradient of their own, 1 / (samples of all
  // ranks): to be called before the backward of each micro-batch; whether it is the step's last.
  virtual void BeginMicroBatch(bool last) = 0;
  // For a stage of a pipeline, once, before its first step: from now on only the backwards that are
  // given to the result (PipelineStage::gradients) are summed. Null: none are.
  virtual BackwardObserver* ObserveOnlyGiven() = 0;
  // The communication of the step's gradients.
  virtual const CommunicationTimes& times() const = 0;

  // ---- Ranks that make updates of their own (DiLoCo) ----
  // After how many steps ranks meet again; 1: in each.
  virtual int64_t round() const { return 1; }
  bool MeetAfter(int64_t steps) const { return steps % round() == 0; }
  // The share of a step's micro-batches whose gradients are in this rank's update.
  virtual double share() const { return 1; }
  bool updates_apart() const { return share() < 1; }
  // Once before the first step, when the weights are loaded: what makes this rank's updates.
  virtual void Begin(optim::Optimizer&) {}
  // After each update; `steps`: how many have been made. Collective where MeetAfter(steps). Returns
  // the communication that it took.
  virtual CommunicationTimes EndStep(int64_t) { return {}; }
  // What makes the updates that all make together; null: there are none.
  virtual optim::Optimizer* outer() { return nullptr; }
  // Collective, between steps. Throws ReplicaError if what ranks should have in common differs;
  // `when` is for the message: "after step 100".
  virtual void CheckWeights(const std::string& when) = 0;
  // Collective, after a step with non-finite gradients, the last one (`ago` = 0) or the one before
  // (1): the ranks whose gradients were already non-finite before the sum, with each one's first
  // such parameter: "rank 1 ('h.0.mlp.c_fc.weight')". With a single rank, only the parameter. Empty
  // if there are none, or if it is not known.
  virtual std::string LocateNonFinite(int64_t ago = 0) = 0;

  // The group in which small values travel; null: one rank.
  ProcessGroup* control() const { return control_.get(); }
  // Collective. The values of all ranks, by rank.
  std::vector<std::vector<double>> Gather(std::span<const double> values);
  // Collective. The sum over all ranks, in rank order.
  double Sum(double value);
  int64_t Sum(int64_t value);
  // Collective. `values` becomes the element-wise sum over all ranks. Exact where at most one
  // rank's value is not 0.
  void SumInPlace(std::vector<double>* values);
  // Collective. Whether `value` is true on any rank, for decisions that all ranks must make alike.
  bool Any(bool value);

 protected:
  // A null group means a single rank. `control` is another group of the same ranks, for small
  // values, whose order is then independent of `group`'s; null: a duplicate of `group`.
  DataRanks(ProcessGroup* group, std::shared_ptr<ProcessGroup> control);
  // For destructors, before they destroy other groups: a rank that ends while others continue is
  // then named by them at once, whichever of the groups they are in. `other` (may be null) is
  // another group in which they may be.
  void LeaveControl(ProcessGroup* other = nullptr) noexcept;

 private:
  const int exceptions_;  // in flight at construction
  const int rank_, size_;
  const std::shared_ptr<ProcessGroup> control_;

  // What Backward has seen of a step's micro-batches.
  struct StepSamples {
    uint64_t id = 0;                      // TrainingStep::id
    int64_t micro_batches = 0, seen = 0;  // of this rank, so far
    int64_t of_rank = 0, of_all = 0;      // in the whole step
  };
  StepSamples step_;
};

}  // namespace lockstep::dist
