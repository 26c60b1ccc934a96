// Who computes the micro-batches of a training step, and who sums their gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/host_read.h"
#include "dist/data_parallel/data_ranks.h"
#include "dist/pipeline/schedule.h"
#include "models/train/step/step_work.h"

namespace lockstep::models {

// Every rank makes the same calls.
class StepRanks {
 public:
  // `context`: ranks that compute the same samples together, but evaluate different batches.
  // `all`: all ranks of the run, also those that have other parts of the model, for errors. Null:
  // there are none besides data(), or these update apart, and fail alone.
  explicit StepRanks(std::shared_ptr<dist::ProcessGroup> context = nullptr,
                     std::shared_ptr<dist::ProcessGroup> all = nullptr);
  virtual ~StepRanks() = default;

  // Among which the samples of a step are partitioned; a single process is the only one.
  virtual dist::DataRanks& data() = 0;
  // The gradients of a step, summed over the micro-batches of all ranks, unless
  // data().updates_apart(). Returns the measures of this rank's micro-batches, in the order of
  // data().micro_order(); none, if another rank has them.
  virtual std::vector<HostRead> Gradients(StepWork& work) = 0;
  // Whether steps can be CUDA graphs: those of a single process that sums in the library's order.
  virtual bool may_be_graphs() const { return false; }
  // Null unless there is a pipeline.
  virtual const dist::PipelineSchedule* schedule() const { return nullptr; }

  // Evaluations are partitioned among data() and `context`.
  int64_t evaluators();
  int64_t evaluator();  // this rank's number
  // Whether this rank's losses and logits count: in a pipeline those of the last stage.
  virtual bool has_losses() const { return true; }
  // Collective. `values` becomes the element-wise sum over all evaluators that have losses.
  void SumOverEvaluators(std::vector<double>* values);
  dist::ProcessGroup* all() const { return all_.get(); }

 private:
  const std::shared_ptr<dist::ProcessGroup> context_, all_;
};

// Ranks that compute micro-batches of their own, one after the other.
class SampleRanks : public StepRanks {
 public:
  // A single process, whose micro-batches are in order.
  explicit SampleRanks(int64_t micro_batches);
  // What sums the gradients.
  explicit SampleRanks(std::unique_ptr<dist::DataRanks> data,
                       std::shared_ptr<dist::ProcessGroup> context = nullptr,
                       std::shared_ptr<dist::ProcessGroup> all = nullptr);
  // The same, which outlives it.
  explicit SampleRanks(dist::DataRanks& data) : data_(&data) {}

  dist::DataRanks& data() override { return *data_; }
  std::vector<HostRead> Gradients(StepWork& work) override;
  bool may_be_graphs() const override { return may_be_graphs_; }

 private:
  const std::unique_ptr<dist::DataRanks> owned_;
  dist::DataRanks* const data_;
  const bool may_be_graphs_ = false;
};

}  // namespace lockstep::models
