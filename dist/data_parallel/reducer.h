// Sums gradients over the ranks while backward goes on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/autograd/leaf.h"
#include "dist/data_parallel/bucket_lanes.h"
#include "dist/data_parallel/gradient_buckets.h"

namespace lockstep::dist {

enum class GradientSum {
  kFast,     // the library's order
  kOrdered,  // the fixed order of dist/data_parallel/fixed_order.h
};

struct ReducerOptions {
  int64_t first_bucket_bytes = 1 << 20;  // and of the last (BucketLimits)
  int64_t bucket_bytes = 0;              // 0: DefaultBucketBytes (dist/data_parallel/bucket_plan.h)
  GradientSum sum = GradientSum::kFast;
  // On the host: how many buckets are summed at the same time, each lane by a group of its own, so
  // that messages of one use the link while another adds or waits for its thread's turn. 0: 2, or 1
  // for a hook of one's own, since that may talk to groups of its own.
  int64_t lanes = 0;
  // Of a step, on all ranks together; 0: one a rank. Reducer::micro_order says which are this
  // rank's.
  int64_t micro_batches = 0;
  // Instead of LibrarySum, for kFast: how a bucket is summed. Each lane has a copy.
  BucketHook hook = {};
  // Parameters for which it returns true may have no gradient, on some or all ranks, in a step
  // (mixtures of experts, layers that are skipped). Where no rank has one, it stays undefined.
  std::function<bool(const Parameter&)> conditional = {};
  // Told of each span as it ends: of buckets on their lane's thread, of the wait on the caller's;
  // one at a time.
  std::function<void(const CommunicationSpan&)> on_span = {};
};

// How many lanes a Reducer of these options has.
int64_t LaneCount(const ReducerOptions& options, int64_t ranks, Device device);

// Data parallelism as an observer of backward: models and the engine know nothing of it. Gradients
// are written into slices of buckets, which are planned when the first backward begins, in the
// order in which its leaves will become ready (rank 0's, on every rank). Once all gradients of a
// bucket are there, and all buckets before it were launched, it is summed in a lane, bucket b in
// lane b modulo their number, while backward goes on. When backward returns, each gradient is the
// sum over all ranks: divide the loss by the global number of tokens or samples before it.
//
// The gradients of a step must be cleared (ZeroGrad) before the next. A parameter that takes no
// part in a step on some rank is an error on every rank, naming it, after all communication has
// ended: nothing hangs. If backward itself throws, the group is aborted, so that the other ranks
// throw too. Then the reducer is of no use any more, nor is the group.
//
// Gradients of bf16 and f16 parameters are f32, as the sums are. Buckets take as many bytes as the
// gradients; kOrdered several times as many where a rank has several micro-batches, about the
// logarithm of their number (but see AssignSubtrees).
class Reducer : public BackwardObserver {
 public:
  // Watches the trainable ones among the parameters, which have memory on the group's device. A
  // null group is a single rank. Nobody else calls the group, which outlives the reducer, while a
  // backward runs. Collective, as is the destructor: lanes have duplicates of the group, and a rank
  // that ends while others go on is named by them at once. Throws ArgumentError.
  Reducer(ProcessGroup* group, std::vector<std::shared_ptr<Parameter>> parameters,
          ReducerOptions options);
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Backwards in its scope only add to this rank's gradients (gradient accumulation).
  class NoSync {
   public:
    explicit NoSync(Reducer& reducer) : reducer_(reducer) { ++reducer_.no_sync_; }
    ~NoSync() { --reducer_.no_sync_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Reducer& reducer_;
  };

  // Takes part in the sums of a step without a micro-batch of its own: for ranks that have run out
  // of data while others have not. Afterwards the gradients are the sums of the others.
  void Join();

  // This rank's micro-batches of a step, of micro_batches() on all ranks, in the order in which it
  // must compute them. In kFast m is rank m modulo ranks's, as they stand; kOrdered gives each rank
  // as much of the sum's tree as it can (AssignSubtrees). Other ranks may have one more, or one
  // fewer.
  const std::vector<int64_t>& micro_order() const { return micro_order_; }
  int64_t micro_batches() const { return options_.micro_batches; }

  // Collective, after a step whose gradients are not finite: on which ranks they were not before
  // the sum, and the first such parameter of each: "rank 1 ('h.0.mlp.c_fc.weight')". Empty if
  // there is none.
  std::string LocateNonFinite();

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
  // What this rank gave to a bucket's sum.
  struct Contribution {
    std::vector<Tensor> terms;
    std::vector<Tensor> parts;  // the gradients in them
    Tensor square_sums;         // of the parts before the sum, per chunk
  };

  int64_t ranks() const { return group_ ? group_->size() : 1; }
  // This rank's part of the plan.
  const FixedOrderPlan::Rank& mine() const { return plan_->ranks[group_ ? group_->rank() : 0]; }
  bool IsConditional(size_t p) const {
    return options_.conditional && options_.conditional(*parameters_[p]);
  }
  void MakePlan(const BackwardPlan& plan);
  void CheckBegin() const;
  void CheckShares(const BackwardPlan& plan) const;
  void BeginMicroStep();
  void BeginSync();
  void FillAbsent(size_t p);
  void MarkReady(size_t p);
  void Launch(int64_t bucket);
  void AddUp(int64_t bucket);
  void FinishSync();
  void ResolveUses();
  void Reset();

  ProcessGroup* const group_;
  Parameters parameters_;
  ReducerOptions options_;
  std::shared_ptr<const FixedOrderPlan> plan_;  // null: kFast
  std::vector<int64_t> micro_order_;
  std::unordered_map<const Leaf*, size_t> index_;  // of parameters_

  // From the first backward on.
  std::optional<GradientBuckets> buckets_;
  std::vector<Contribution> contributions_;  // per bucket

  // Of the step under way.
  int no_sync_ = 0;
  int64_t micro_ = 0;  // backwards so far
  // That this backward is; null: kFast, or none of ours.
  const FixedOrderPlan::MicroStep* micro_step_ = nullptr;
  bool in_backward_ = false, sync_ = false, ended_well_ = false;
  std::vector<uint8_t> uses_;  // Use, per parameter
  int64_t launched_ = 0;       // buckets
  Tensor my_uses_, all_uses_;  // u8 [P], [ranks, P]
  CommunicationTimes times_;
  std::optional<BucketLanes> lanes_;  // last: its jobs use the others
};

}  // namespace lockstep::dist
