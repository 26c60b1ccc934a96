// Sums gradients over the ranks while backward runs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/autograd/leaf.h"
#include "core/host_read.h"
#include "dist/data_parallel/bucket_lanes.h"
#include "dist/data_parallel/fixed_order.h"
#include "dist/data_parallel/gradient_buckets.h"
#include "dist/data_parallel/tied_gradients.h"

namespace lockstep::dist {

enum class GradientSum {
  kFast,     // the library's order
  kOrdered,  // the fixed order of dist/data_parallel/fixed_order.h
};

struct ReducerOptions {
  int64_t first_bucket_bytes = 1 << 20;  // also the last one's (BucketLimits)
  int64_t bucket_bytes = 0;              // 0: DefaultBucketBytes (dist/data_parallel/bucket_plan.h)
  GradientSum sum = GradientSum::kFast;
  // On the host: how many buckets are summed at the same time, each in a lane with its own group,
  // so that one lane's messages use the link while another adds or waits to be scheduled. 0: 2, or
  // 1 with a custom hook, which may use groups of its own.
  int64_t lanes = 0;
  // Per step, on all ranks together; 0: one per rank. Reducer::micro_order lists this rank's.
  int64_t micro_batches = 0;
  // Which rank computes which of them, where not the sum decides (Reducer::micro_order); else
  // empty.
  Assignment assignment = {};
  // For kFast: how a bucket is summed, instead of by LibrarySum. Each lane has a copy.
  BucketHook hook = {};
  // Parameters for which it returns true may lack a gradient in a step on some or all ranks
  // (mixtures of experts, skipped layers). If no rank has one, the gradient stays undefined.
  std::function<bool(const Parameter&)> conditional = {};
  // Called for each span as it ends, one at a time: for a bucket on its lane's thread, for the wait
  // on the caller's.
  std::function<void(const CommunicationSpan&)> on_span = {};
  // Uses of tied weights that are among the parameters, and are added up once they are summed.
  // DataParallel sets it (TiedApart).
  std::shared_ptr<const TiedGradients> tied = nullptr;
  // Whether there are others than its ranks to tell which of its gradients are not finite: then
  // even a single one notes it for LocateNonFinite. A part of a model, such as a stage of a
  // pipeline, may have nothing to train.
  bool is_part = false;
};

// Keeps the gradients of the module's tied weights apart where they are summed use by use: in
// ordered sums of several micro-batches. Null: not in this one.
std::shared_ptr<const TiedGradients> TiedApart(Module& module, GradientSum sum,
                                               int64_t micro_batches);

// Collective: "rank 1 ('h.0.mlp.c_fc.weight')" for each rank that names a parameter, by its index;
// -1: none.
std::string NameByRank(ProcessGroup& group, int64_t parameter,
                       std::span<const std::shared_ptr<Parameter>> parameters);

// How many lanes a Reducer with these options has.
int64_t LaneCount(const ReducerOptions& options, int64_t ranks, Device device);

// Data parallelism as an observer of backward: models and the engine know nothing of it. Gradients
// are written into slices of buckets, which are planned when the first backward begins, in the
// order in which its leaves will become ready (rank 0's, on every rank). Once all gradients of a
// bucket are ready and all earlier buckets have been launched, it is summed in a lane (bucket b in
// lane b modulo their number) while backward continues. When backward returns, each gradient is the
// sum over all ranks: divide the loss by the global number of tokens or samples beforehand.
//
// The gradients of a step must be cleared (ZeroGrad) before the next. If a parameter takes no part
// in a step on some rank, every rank throws an error that names it, after all communication has
// ended, so nothing hangs. If backward itself throws, the group is aborted, so that the other ranks
// throw too; reducer and group are then unusable.
//
// Gradients of bf16 and f16 parameters are f32, as the sums are. Buckets take as many bytes as the
// gradients. With kOrdered and several micro-batches per rank they take a multiple, about the
// logarithm of their number (but see AssignSubtrees).
class Reducer : public BackwardObserver {
 public:
  // Sums the gradients of the trainable parameters, which must be materialised on the group's
  // device. A null group means a single rank. The group must outlive the reducer, and nothing else
  // may call it while a backward runs. Collective, as is the destructor: lanes have duplicates of
  // the group, and a rank that ends while others continue is named by them at once. Throws
  // ArgumentError.
  Reducer(ProcessGroup* group, std::vector<std::shared_ptr<Parameter>> parameters,
          ReducerOptions options);
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Within its scope, backwards only add to this rank's gradients (gradient accumulation).
  class NoSync {
   public:
    explicit NoSync(Reducer& reducer) : reducer_(reducer) { ++reducer_.no_sync_; }
    ~NoSync() { --reducer_.no_sync_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Reducer& reducer_;
  };

  // Takes part in the sums of a step without contributing a micro-batch, for ranks that run out of
  // data before others. Afterwards the gradients are the sums of the others.
  void Join();

  // This rank's micro-batches of a step, of micro_batches() on all ranks, in the order in which it
  // must compute them. With kFast, rank m modulo the number of ranks computes micro-batch m, in
  // ascending order; kOrdered gives each rank as much of the sum's tree as possible
  // (AssignSubtrees). Other ranks may have one more or one fewer.
  const std::vector<int64_t>& micro_order() const { return micro_order_; }
  int64_t micro_batches() const { return options_.micro_batches; }

  // As DataRanks::LocateNonFinite. With `among`, a superset of the reducing ranks, it reports on
  // all ranks of `among`; all of them call it.
  std::string LocateNonFinite(int64_t ago = 0);
  std::string LocateNonFinite(int64_t ago, ProcessGroup& among);

  // In the order in which they are launched; empty before the first backward.
  std::span<const Bucket> buckets() const {
    return buckets_ ? buckets_->plans() : std::span<const Bucket>();
  }
  // Names of the parameters in a bucket.
  std::vector<std::string> NamesIn(int64_t bucket) const {
    return buckets_.value().NamesIn(bucket);
  }
  const CommunicationTimes& times() const { return times_; }
  ProcessGroup* group() const { return group_; }

  void OnBegin(const BackwardPlan& plan) override;
  void OnLeafReady(Leaf& leaf) override;
  void OnEnd() override;
  void OnError() noexcept override;

 private:
  // How a rank used a parameter in a step.
  enum Use : uint8_t { kUnused, kUsed, kJoined };
  // What this rank contributes to a bucket's sum.
  struct Contribution {
    std::vector<Tensor> terms;
    std::vector<Tensor> parts;  // the gradients in them
    // Sums of squares of the parts before the sum, per chunk: this step's, and those of the step
    // before.
    Tensor square_sums, earlier_sums;
  };

  int64_t ranks() const { return SizeOf(group_); }
  bool NotesSquares() const { return ranks() > 1 || options_.is_part; }
  // This rank's part of the plan.
  const FixedOrderPlan::Rank& mine() const { return plan_->ranks[RankIn(group_)]; }
  bool IsConditional(size_t p) const {
    return options_.conditional && options_.conditional(*parameters_[p]);
  }
  int64_t FirstNonFinite(int64_t ago) const;  // of parameters_; -1: none
  void MakePlan(const BackwardPlan& plan);
  void CheckBegin() const;
  void BeginMicroStep();
  void BeginSync();
  void FillAbsent(size_t p);
  void MarkReady(size_t p);
  void Launch(int64_t bucket);
  void AddUp(int64_t bucket);
  void FinishSync();
  void ResolveUses();
  void Reset();
  // What changes with each update of the weights.
  uint64_t Version() const { return parameters_[0]->value().storage().version(); }
  // Resets where backwards of this step have left nothing, and no update was made.
  void ForgetDropped();

  ProcessGroup* const group_;
  Parameters parameters_, frozen_;
  ReducerOptions options_;
  std::shared_ptr<const FixedOrderPlan> plan_;  // null: kFast
  std::vector<int64_t> micro_order_;
  std::unordered_map<const Leaf*, size_t> index_;  // of parameters_

  // Set by the first backward.
  std::optional<GradientBuckets> buckets_;
  std::vector<Contribution> contributions_;  // per bucket

  // State of the current step.
  int no_sync_ = 0;
  int64_t micro_ = 0;     // backwards so far
  uint64_t version_ = 0;  // Version, at the end of the last of them
  // This backward's; null: kFast, or Join.
  const FixedOrderPlan::MicroStep* micro_step_ = nullptr;
  bool in_backward_ = false, sync_ = false, ended_well_ = false;
  std::vector<uint8_t> uses_;  // Use, per parameter
  int64_t launched_ = 0;       // buckets
  Tensor my_uses_, all_uses_;  // u8 [P], [ranks, P]
  HostRead read_uses_;         // of all_uses_, while backward runs
  CommunicationTimes times_;
  std::optional<BucketLanes> lanes_;  // last: its jobs use the others
};

}  // namespace lockstep::dist
