// DiLoCo: ranks that make steps of their own, and meet only after many, for links on which
// gradients of every step would take too long (Douillard et al., "DiLoCo: distributed
// low-communication training of language models", 2023, arXiv 2311.08105).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/module.h"
#include "dist/data_parallel/bucket_sum.h"
#include "dist/data_parallel/data_ranks.h"
#include "optim/sgd.h"

namespace lockstep::dist {

struct DiLoCoOptions {
  int64_t every = 50;  // steps of a round
  // Of the outer optimizer: SGD with Nesterov's momentum (0: none).
  double lr = 0.7, momentum = 0.9;
  DType dtype = DType::kF32;  // in which outer gradients travel: f32, or bf16, half the bytes
  int64_t micro_batches = 0;  // of a step, on all ranks together; 0: one per rank
  int64_t bucket_bytes = 0;   // that are summed at once; 0: DefaultBucketBytes
};

// Each rank is a worker: it computes its micro-batches of each step, and updates its weights by
// their mean gradient alone, by an optimizer of its own (the inner one). After a round of `every`
// steps a worker's outer gradient is how far its weights have come: those at the round's start
// minus those now, in f32 (of the f32 originals of 16-bit weights). The mean of these over the
// workers, weighted by their micro-batches, is the gradient of an outer optimizer, whose result is
// what all workers go on from; their inner state stays as it is. So ranks send the weights' bytes
// once a round, and nothing in between; loss, norm, clipping, loss scale and skipped updates of a
// step are the worker's own.
//
//   dist::DiLoCo workers(group.get(), model, {.every = 50});  // all begin with rank 0's weights
//   optim::AdamW adamw(model.Parameters());
//   workers.Begin(adamw);
//   for (int64_t step = 0; step < steps; ++step) {
//     const auto training = adamw.BeginStep(state, step, schedule(step), {.first_sample = ...});
//     workers.Backward(loss, samples, training);  // divides by this worker's samples
//     adamw.Step(state);
//     adamw.ZeroGrad();
//     workers.EndStep(step + 1);                  // after every 50th, all have the same weights
//   }
//
// The outer sum has a fixed order, and all apply the same bytes, so a run has the same bits each
// time; these depend on the number of workers. In bf16 each worker's outer gradient is rounded, the
// sum is made in f32, and rounded once more, by the rank that makes it. Between rounds the only
// thing that a worker learns of the others is that one has failed. The workers of a round are those
// of the group: for others, make another DiLoCo between rounds, and give its outer() the state of
// the old one's.
class DiLoCo : public DataRanks {
 public:
  // Collective. As DataParallel's: compares shapes, and copies rank 0's weights and buffers to all
  // ranks. A null group means a single worker. Group and module must outlive it. Throws
  // ArgumentError for options that are out of range.
  DiLoCo(ProcessGroup* group, Module& module, const DiLoCoOptions& options,
         std::shared_ptr<ProcessGroup> control = nullptr);
  ~DiLoCo() override { LeaveControl(group_); }

  const std::vector<int64_t>& micro_order() const override { return micro_order_; }
  int64_t micro_batches() const override { return options_.micro_batches; }
  // Throws, as any call of the group does, if the run has failed meanwhile.
  void BeginMicroBatch(bool last) override;
  BackwardObserver* ObserveOnlyGiven() override { return nullptr; }
  const CommunicationTimes& times() const override { return none_; }
  // Between rounds: within one, weights differ. Buffers that change in training, such as the
  // statistics of batch norm, are each worker's own, and are found to differ.
  void CheckWeights(const std::string& when) override;
  // This rank: it is the only one to know of its gradients.
  std::string LocateNonFinite(int64_t ago = 0) override;

  int64_t round() const override { return options_.every; }
  double share() const override { return share_; }
  // Takes 8 bytes per trainable parameter, for its value at the round's start and the outer
  // momentum; the end of a round takes another 4, for as long as it lasts. `inner` outlives this.
  void Begin(optim::Optimizer& inner) override;
  CommunicationTimes EndStep(int64_t steps) override;
  // Its parameters are the weights at the round's start, in f32. With the inner state of each
  // worker and the weights, its state is what a checkpoint holds at the end of a round.
  optim::Optimizer* outer() override { return outer_ ? &*outer_ : nullptr; }

 private:
  void Sum(const Tensor& flat, int64_t steps);

  ProcessGroup* const group_;
  Module& module_;
  const DiLoCoOptions options_;
  const std::vector<int64_t> micro_order_;
  const double share_;
  BucketHook sum_;
  optim::Optimizer* inner_ = nullptr;
  std::optional<optim::Sgd> outer_;  // set by Begin
  std::optional<StepState> outer_step_;
  int64_t rounds_ = 0;  // since Begin
  const CommunicationTimes none_;
};

}  // namespace lockstep::dist
