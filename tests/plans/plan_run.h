// Short runs of small models under any plan, for the law that no plan changes a bit of an ordered
// run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "core/storage.h"
#include "dist/process_group.h"
#include "dist/shard/fully_shard.h"
#include "dist/tensor/tensor_ranks.h"
#include "models/gpt/gpt.h"
#include "models/options/config.h"
#include "models/options/option_offload.h"
#include "models/train/pipeline_parallel.h"
#include "models/train/step/trainer.h"

namespace lockstep::models {

// What is trained.
struct Task {
  GptConfig model;  // whose block_size is the window
  DType dtype = DType::kF32;
  OptimOptions optim;
  int64_t micro_batches = 4;  // of a step, on all ranks
  int64_t virtual_tp = 1;
  int64_t virtual_cp = 1;
  bool document_mask = false;  // token 9 begins each document
  bool fast = false;           // dist.reduction=fast; virtual sizes are then those of the plan
  int steps = 5;
};
std::ostream& operator<<(std::ostream& out, const Task& task);
// The same task with a Llama's norms, MLPs and positions, without biases.
Task LlamaLike(Task task);
// The same Llama with all that Gemma 2 and 3 and Qwen2 have besides, and windows shorter than the
// sequence; biases and dropout stay.
Task GemmaLike(Task task);
// The same Llama with OLMo 2's norms: after each branch, and of all heads together.
Task OlmoLike(Task task);
// The same task with the ingredients of modern recipes that models have.
Task ModernLike(Task task);

// How it is trained: on which ranks, and with what in memory.
struct Plan {
  int64_t shards = 1, copies = 1;  // data ranks: shards * copies
  int64_t tp = 1;                  // ranks that compute a layer together
  int64_t cp = 1;                  // ranks that compute a sequence together
  // Ranks that split experts: of cp, and then of the shards, or else of the copies.
  int64_t ep = 1;
  int64_t pp = 0;  // ranks of a pipeline; 0: none
  dist::PipelineKind schedule = dist::PipelineKind::k1F1B;
  // By DataParallel, which has one shard, as have the pipelines of one; otherwise by FullyShard.
  bool data_parallel = false;
  dist::ShardOptions options = {};  // but for the micro-batches
  bool in_memory = false;           // before it is sharded
  RecomputeChoice recompute = {};
  OffloadChoice offload = {};  // on a GPU

  int64_t data_ranks_of_experts() const {
    return ParallelOptions{.cp = cp, .ep = ep}.data_ranks_of_experts();
  }
  bool is_sharded() const { return !data_parallel && (pp == 0 || shards > 1); }
  int ranks() const {
    return static_cast<int>(std::max<int64_t>(pp, 1) * shards * copies * cp * tp);
  }
};
std::ostream& operator<<(std::ostream& out, const Plan& plan);
// The same plan by shards with these options, whose sums are ordered.
Plan ByShards(Plan plan, const dist::ShardOptions& options);
inline constexpr dist::PipelineKind kPipelineKinds[] = {
    dist::PipelineKind::k1F1B, dist::PipelineKind::kInterleaved, dist::PipelineKind::kZeroBubbleH1,
    dist::PipelineKind::kZeroBubbleV};

// Everything that training computes, and what a checkpoint holds.
struct Outcome {
  std::vector<double> losses, norms, loads;  // loads: of a step's most and least loaded expert
  double val_loss = 0;                       // in the middle
  double val_loss_ema = 0;                   // the same of averages, if there are any
  std::map<std::string, Tensor> weights;     // whole, on the CPU; buffers too
  NamedTensors state;
  std::optional<LossScale> loss_scale;
};
// The first thing in which the bits differ: "the loss of step 3", "the weight 'wte.weight'"; empty
// if none do.
std::string Difference(const Outcome& a, const Outcome& b);

// A rank's part of a run.
class PlanRun {
 public:
  // Collective. Begins where `from` ends, if it is given. The ranks are all of the plan's.
  PlanRun(dist::ProcessGroup& all, const Task& task, const Plan& plan,
          const Outcome* from = nullptr);

  void Train(int steps);
  double Evaluate();
  // Collective. With weights and state, which are gathered.
  Outcome Finish();
  Gpt& model() { return model_; }
  StepRanks& ranks() { return *ranks_; }
  dist::DataRanks& parallel() { return ranks_->data(); }
  optim::Optimizer& optimizer() { return *optimizer_; }
  Trainer& trainer() { return *trainer_; }

 private:
  const Task task_;
  const std::shared_ptr<dist::ProcessGroup> all_;
  const ParallelPlan parallel_plan_;
  const MeshGroups groups_;
  Gpt model_;
  std::unique_ptr<StepRanks> ranks_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::shared_ptr<const data::TokenSource> tokens_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<Trainer> trainer_;
  Outcome outcome_;
};

// Gives a 4-bit base random values, which depend on nothing but the layers' paths.
void QuantizeWeights(Gpt& model);

// What rank 0 has at the end of a run on ranks in this process, on the CPU or on simulated GPUs;
// fails unless all ranks have the same.
Outcome TrainBy(const Task& task, const Plan& plan, int steps, const Outcome* from = nullptr,
                bool on_gpus = false);
// All of the task's steps by one process.
Outcome TrainAlone(const Task& task, bool on_gpu = false);
// Fails for each plan that differs in a bit from one process. Clipping must have an effect, so that
// the norm of a part of the gradients would show. CI sets PLAN_HALF, to 0 or 1: then each
// second plan is played, from the first or the second on.
void ExpectSameBits(const Task& task, const std::vector<Plan>& plans, bool on_gpus = false);

}  // namespace lockstep::models
