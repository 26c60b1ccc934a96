// Runs a schedule: this rank's stages of a model, as other ranks run theirs.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/autograd/engine.h"
#include "dist/pipeline/pipeline_edges.h"
#include "dist/pipeline/schedule.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// A stage as its rank sees it; functions are called in the schedule's order.
struct PipelineStage {
  // The stage's output for a micro-batch, 0 to m - 1. `input` is what the stage before gave, of the
  // boundary's shape, undefined for the first stage; the last stage gives the loss, a scalar.
  std::function<Tensor(const Tensor& input, int micro)> forward;
  // Called before a micro-batch's backward. Returns the gradient of the output, given the one that
  // was received; for the last stage, which received none, the root gradient.
  std::function<Tensor(const Tensor& received, int micro)> output_gradient;
  // The root gradient of the micro-batch's loss, for stages before the last with losses of their
  // own (core/autograd/root_gradient.h). Called after output_gradient; may be empty.
  std::function<Tensor(int micro)> root_gradient = {};
  // Sees the backwards in which the gradients of the stage's parameters are made, one per
  // micro-batch, in their order, also where a schedule makes input gradients earlier: a Reducer,
  // say, which then must not observe the parameters itself (StopObserving of data_ranks.h). May be
  // null.
  BackwardObserver* gradients = nullptr;
  // Called before those; may be empty.
  std::function<void(int micro)> before_gradients;
};

// An action as it was carried out, from when its input was there. On a GPU the times are the
// host's.
struct PipelineSpan {
  PipelineAction action;
  std::chrono::steady_clock::time_point begin, end;
};

struct PipelineOptions {
  // Called after each forward and gradient.
  std::function<void(const PipelineSpan&)> on_span = {};
  // Further observers of every backward.
  std::vector<BackwardObserver*> observers = {};
};

// One per rank of a pipeline. Every rank makes the same calls.
class Pipeline {
 public:
  // Collective over `ranks`, which must outlive it; null: one rank, which has all stages. The
  // schedule has no transfers. `stages`: this rank's, ascending. Throws ArgumentError if the
  // schedule is not one (schedule_check.h), or is for other ranks or stages.
  Pipeline(ProcessGroup* ranks, const PipelineSchedule& schedule, std::vector<PipelineStage> stages,
           PipelineOptions options = {});

  // Runs all micro-batches forward and backward. Throws CollectiveError.
  void Step(const PipelineBoundary& boundary);
  // Runs this many micro-batches forward, without recording a graph.
  void Forward(const PipelineBoundary& boundary, int micro_batches);

  // With transfers.
  const PipelineSchedule& schedule() const { return schedule_; }
  void set_options(PipelineOptions options) { options_ = std::move(options); }

 private:
  struct Live;  // a micro-batch in a stage
  Live& At(const PipelineAction& action);
  PipelineStage& Stage(int stage);
  Tensor InputOf(const PipelineAction& forward);
  void RunForward(const PipelineAction& action, bool record);
  void RunBackward(const PipelineAction& action);
  void RunWeightGrad(const PipelineAction& action);
  void Run(const PipelineSchedule& schedule, const PipelineBoundary& boundary, bool record);
  void PassOn(const PipelineAction& send, int to, const Tensor& tensor, Tensor Live::*as);

  ProcessGroup* const ranks_;
  const int rank_;
  const PipelineSchedule schedule_;
  const std::vector<int> mine_;  // stages
  std::vector<PipelineStage> stages_;
  PipelineOptions options_;
  PipelineEdges edges_;
  const PipelineSchedule* running_ = nullptr;
  std::chrono::steady_clock::time_point began_;                // the action being carried out
  std::map<std::pair<int, int>, std::shared_ptr<Live>> live_;  // by stage and micro-batch
};

}  // namespace lockstep::dist
