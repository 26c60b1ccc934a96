// One model, one optimizer, one stream of batches: the training step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/autograd/engine.h"
#include "core/host_read.h"
#include "core/step_state.h"
#include "data/evaluation.h"
#include "data/loader.h"
#include "dist/data_parallel/data_ranks.h"
#include "models/gpt/language_model.h"
#include "models/preference/preference_objective.h"
#include "models/report/metrics.h"
#include "models/train/phase_clock.h"
#include "models/train/pipeline_parallel.h"
#include "models/train/step_graphs.h"
#include "nn/mixture/expert_loads.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"

namespace lockstep::models {

// A loss or gradient that is NaN or infinite. The update was not made.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

struct TrainerOptions {
  int64_t first_step = 0;          // updates already made (resume)
  int64_t micro_batches = 1;       // per update, on all ranks together
  double clip = 1.0;               // largest gradient norm; 0: no clipping
  uint64_t seed = 1337;            // for dropout
  TraceRecorder* trace = nullptr;  // gets spans of steps, phases and nodes; outlives the trainer
  bool cuda_graphs = false;        // on a GPU, launch steps as CUDA graphs
  std::function<void(const std::string&)> say;  // told why if that is not possible
  // Null: a single process, micro-batches in order. Otherwise the loader has its micro_order, and
  // every rank makes the same calls. Outlives the trainer.
  dist::DataRanks* parallel = nullptr;
  PipelineParallel* pipeline = nullptr;  // the same, where the model is in a pipeline
  // All ranks of the run, also those that have other parts of the model, for errors; null: only
  // those of `parallel`.
  dist::ProcessGroup* all = nullptr;
  // Ranks that compute the same samples together, and partition evaluations; null: none.
  dist::ProcessGroup* context = nullptr;
  // What a step minimises instead of the mean cross entropy of its targets: the mean loss of its
  // pairs of answers. The loader's batches are windows of pairs (SplitPairs). Not with `pipeline`
  // or `context`; steps are no CUDA graphs. Outlives the trainer.
  const PreferenceObjective* preference = nullptr;
  int64_t check_every = 0;  // steps between comparisons of the ranks' weights; 0: never
  // Consecutive updates that are skipped and reported because a gradient is not finite, before
  // NonFiniteError is thrown. Such a step counts, and its loss and norm are not finite.
  int64_t max_skips = 0;
  // For f16 weights. An update that is skipped because its gradients times the scale were infinite
  // is no error while the loss is finite, and the scale above 1 and about to be lowered.
  std::optional<LossScaleOptions> loss_scaling{};
  std::optional<LossScale> loss_scale{};  // of the checkpoint
};

// Runs updates and evaluations; what happens between them (logs, checkpoints, samples) is up to the
// caller. The next step depends only on the model, the optimizer's state and step().
class Trainer {
 public:
  // Everything outlives the trainer. The loader must start at first_step. A trainer without an
  // optimizer (null) only evaluates.
  Trainer(LanguageModel& model, optim::Optimizer* optimizer, optim::LrSchedule schedule,
          data::Loader& loader, const TrainerOptions& options);
  Trainer(LanguageModel& model, optim::Optimizer& optimizer, optim::LrSchedule schedule,
          data::Loader& loader, const TrainerOptions& options)
      : Trainer(model, &optimizer, std::move(schedule), loader, options) {}

  // Makes one update: the mean loss over the targets of micro_batches micro-batches, its gradient,
  // clipping, the optimizer. Throws, on all ranks and with nothing changed, a NonFiniteError that
  // names the first bad parameter and the ranks where it was bad. Throws dist::ReplicaError and
  // dist::CollectiveError.
  StepMetrics Step();

  // The same for a loop that keeps a GPU busy: the host continues while the device computes. Submit
  // hands it the next update and returns the metrics of the one before, unless Finish has returned
  // them already; Finish waits for the last one, if any, and returns its metrics. A loss or
  // gradient that is not finite is found before the following update: so Submit may throw the
  // NonFiniteError of the step before, and step() falls back to the last update that was made. The
  // phases' times are the host's.
  std::optional<StepMetrics> Submit();
  std::optional<StepMetrics> Finish();

  // Mean loss in nats per token over all targets; no graph, no dropout. Ranks divide the batches
  // among them, also those of `context`; the result has the same bits at any number of ranks.
  // With `preference` it is the mean over the pairs of the batches; their rewards are measured,
  // too, if `metrics` is set.
  double Evaluate(const data::EvalBatches& batches, PreferenceMetrics* metrics = nullptr);
  // The same; or nothing, if `stop` says so. It is asked between batches, at the same ones on all
  // ranks, where it must say the same.
  std::optional<double> EvaluateUnless(const std::function<bool()>& stop,
                                       const data::EvalBatches& batches,
                                       PreferenceMetrics* metrics = nullptr);

  int64_t step() const { return step_; }  // updates made, including those of earlier runs
  // After the last step that was returned; none without loss scaling.
  const std::optional<LossScale>& loss_scale() const { return loss_scale_; }
  // How many of this trainer's steps were CUDA graphs.
  int64_t graph_replays() const { return graphs_ ? graphs_->replays() : 0; }

 private:
  // An update that the device may still be computing.
  struct Pending {
    StepMetrics metrics;  // without loss and norm
    int64_t tokens = 0;   // of all micro-batches
    int64_t targets = 0;  // those whose losses count, or pairs of answers
    // Sums over a micro-batch, in micro_order_: of its tokens' losses, or measures of its pairs.
    std::vector<HostRead> losses;
    HostRead values;
    // Loads of the experts: this rank's, until they are summed over the ranks.
    std::vector<HostRead> expert_reads;
    nn::LayerLoads expert_loads;
  };

  int64_t ranks() const { return options_.parallel ? options_.parallel->size() : 1; }
  int64_t rank() const { return options_.parallel ? options_.parallel->rank() : 0; }
  void AccumulateGradients(Pending& pending, PhaseClock& clock);
  Tensor MicroStep(const Tensor& ids, const Tensor& targets, const Tensor& root);
  Tensor MicroStepOfPairs(const data::Batch& rows, const Tensor& root);
  int64_t measures() const { return options_.preference ? PreferenceObjective::kMeasures : 1; }
  void Update();
  void MoveExpertBiases(Pending& pending);
  void SumExpertLoads(Pending& pending);
  double MeanLoss(Pending& pending);
  StepMetrics Collect(bool have_gradients);
  std::string DescribeNonFinite(int64_t step, double loss, bool have_gradients, bool was_skipped);

  LanguageModel& model_;
  optim::Optimizer* optimizer_;
  optim::LrSchedule schedule_;
  data::Loader& loader_;
  TrainerOptions options_;
  std::vector<std::shared_ptr<Parameter>> parameters_;
  nn::ExpertLoads experts_;
  std::vector<int64_t> micro_order_;
  StepState state_;
  int64_t step_;
  int64_t skips_ = 0;  // consecutive
  std::optional<LossScale> loss_scale_;
  data::Batch eval_batch_;
  std::optional<Pending> pending_;
  // Those of the step being submitted.
  BackwardOptions backward_;
  PhaseClock* clock_ = nullptr;
  std::optional<StepGraphs> graphs_;
};

}  // namespace lockstep::models
