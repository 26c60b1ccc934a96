// A GPT whose stages are on several ranks; the samples may be partitioned among copies of a stage.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/host_read.h"
#include "core/step_state.h"
#include "data/batch.h"
#include "dist/pipeline/pipeline.h"
#include "dist/tensor/tensor_ranks.h"
#include "models/train/parallel_plan.h"
#include "models/train/pipeline_stages.h"
#include "models/train/step/step_ranks.h"
#include "nn/documents.h"

namespace lockstep::models {

// The schedule of a step on these ranks. Throws InputError if there is none for these numbers, or
// if data ranks would have different numbers of micro-batches.
dist::PipelineSchedule ScheduleOf(const PipelinePlan& plan, int64_t micro_batches,
                                  int pipeline_ranks, int data_ranks);

// While it exists, the model's forwards go through the pipeline: the loss of targets is there on
// the last stage's rank and 0 on the others, logits are on all of them. Every rank of the pipeline
// makes the same calls. Those of a loss, and Gpt::Stream, wait for no later stage, so that the next
// call keeps the earlier stages busy.
//
// As dist::DataRanks, it counts ranks and samples by copies of the model: `rank` and `size` are
// those along dp, sums and gathers go over pp and dp. Tensor-parallel ranks have a pipeline each.
class PipelineParallel : public dist::DataRanks, public StepRanks {
 public:
  // For each of the model's parameters, the pipeline's rank that has its stage, and in `copies`
  // (may be null) the rank of a second stage, which only tied weights have, or -1. Throws
  // InputError if the model cannot be cut, or has another weight in two stages.
  static std::vector<int> RanksOf(const ParallelPlan& plan, int pipeline_ranks, int data_ranks,
                                  Gpt& gpt, std::vector<int>* copies = nullptr);
  // Throws InputError if weights would be in the host's memory when the schedule's later weight
  // gradients read them.
  static void CheckOffload(dist::PipelineKind kind, bool is_sharded, const GptConfig& config);
  // Collective. Decides which parameters are here, before they have memory. Throws as RanksOf.
  static void Place(const MeshGroups& groups, const ParallelPlan& plan, Gpt& gpt);
  // Collective, after Place and Parallelize, and before or after the weights are filled, as
  // MakeDataRanks says of each stage. `tensor`: the ranks of ShareLayers, if any. The model
  // outlives it.
  PipelineParallel(const MeshGroups& groups, const ParallelPlan& plan, Gpt& gpt,
                   dist::TensorRanksPtr tensor = nullptr);
  ~PipelineParallel() override;

  // Collective: the gradients of a step, summed over all micro-batches. `batches`: the
  // micro-batches of micro_order(), which all ranks of a pipeline have; `root`: the gradient of
  // each loss, before the state's loss scale. The sums of the losses are on the last stage's rank,
  // in the batches' order; none on the others. Parameters that are elsewhere get an empty gradient.
  std::vector<HostRead> Gradients(std::span<const data::Batch> batches, double root,
                                  const StepState& state,
                                  std::span<BackwardObserver* const> observers = {});
  std::vector<HostRead> Gradients(StepWork& work) override;

  dist::DataRanks& data() override { return *this; }
  const std::vector<int64_t>& micro_order() const override {
    return stages_[0]->data->micro_order();
  }
  int64_t micro_batches() const override { return stages_[0]->data->micro_batches(); }
  void BeginMicroBatch(bool) override {}                             // Gradients does
  BackwardObserver* ObserveOnlyGiven() override { return nullptr; }  // the stages do
  const dist::CommunicationTimes& times() const override { return times_; }
  void CheckWeights(const std::string& when) override;
  std::string LocateNonFinite(int64_t ago = 0) override;

  const dist::PipelineSchedule* schedule() const override { return &pipeline_->schedule(); }
  // The pipeline's rank that has the last stage, and with it the losses.
  bool has_losses() const override { return stages_.back()->model.last(); }

 private:
  struct Stage {
    Stage(Gpt& gpt, int64_t begin, int64_t end, const dist::TensorRanksPtr& tensor,
          const MeshGroups& of_rank, const std::string& name, const ParallelPlan& plan,
          const dist::TiedGradients& tied);
    GptStage model;
    MeshGroups groups;  // of the data ranks, and of those that split the experts
    std::unique_ptr<dist::DataRanks> data;
  };
  // What the stages' functions work on.
  struct Work {
    std::vector<Tensor> ids{}, targets{};    // of each micro-batch
    std::vector<nn::Documents> documents{};  // the same; empty: those of the thread
    std::optional<StepState> state{};        // of training
    int64_t rows = 0;
    double root = 0;
    std::vector<Tensor> results{};        // of the last stage, in training
    nn::ResidualStream stream{Tensor()};  // before its head, elsewhere
  };

  dist::PipelineStage FunctionsOf(Stage& stage);
  void MeetTied();
  void AddTied();
  dist::PipelineBoundary BoundaryOf(int64_t rows, int64_t cols) const;
  nn::ResidualStream Stream(const Tensor& ids);
  Tensor Through(const Tensor& ids, const Tensor& targets);

  const MeshGroups groups_;
  const dist::TensorRanksPtr tensor_;
  Gpt& gpt_;
  const dist::PipelineOptions options_;
  const dist::TiedGradients tied_;              // of a weight in the first and in the last stage
  std::shared_ptr<dist::ProcessGroup> tie_;     // their ranks; null: one, or this is none of them
  std::vector<std::unique_ptr<Stage>> stages_;  // this rank's
  std::vector<std::shared_ptr<Parameter>> elsewhere_;
  std::optional<dist::Pipeline> pipeline_;
  Work work_;
  dist::CommunicationTimes times_;
};

}  // namespace lockstep::models
