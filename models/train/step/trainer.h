// One model, one optimizer, one stream of batches: the training step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/host_read.h"
#include "core/step_state.h"
#include "data/evaluation.h"
#include "data/loader.h"
#include "models/gpt/language_model.h"
#include "models/report/metrics.h"
#include "models/report/trace.h"
#include "models/train/step/objective.h"
#include "models/train/step/step_graphs.h"
#include "models/train/step/step_observer.h"
#include "models/train/step/step_ranks.h"
#include "nn/mixture/expert_loads.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/spike_guard.h"

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
  // What a step minimises. Outlives the trainer.
  const Objective* objective = &kNextToken;
  // Who computes its micro-batches, and who sums. The loader has its data().micro_order(), and
  // every rank makes the same calls. Outlives the trainer. Null: a single process.
  StepRanks* ranks = nullptr;
  int64_t check_every = 0;  // steps between comparisons of the ranks' weights; 0: never
  // Consecutive updates that are skipped and reported because a gradient is not finite, before
  // NonFiniteError is thrown. Such a step counts, and its loss and norm are not finite.
  int64_t max_skips = 0;
  int64_t skips = 0;  // of these, the ones just before first_step
  // For f16 weights. An update that is skipped because its gradients times the scale were infinite
  // is no error while the loss is finite, and the scale above 1 and about to be lowered.
  std::optional<LossScaleOptions> loss_scaling{};
  std::optional<LossScale> loss_scale{};  // of the checkpoint
  // An update whose loss or norm is above its recent range by more than so many deviations is
  // skipped (optim::SpikeGuard), which counts as a step; 0: none is. The host then waits for the
  // loss before each update.
  double spike = 0;
  optim::SpikeHistory spike_history{};  // of the checkpoint
  // Whether all that ranks sum in a step is summed before its update. After it, nothing of the step
  // needs the other ranks any more: a rank makes a step entirely, or not at all. The host then
  // waits for the loss before each update.
  bool sums_first = false;
  std::function<void()> before_update;     // called before each update; may be empty
  std::vector<StepObserver*> observers{};  // of each step; they outlive the trainer
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
  // The same without the other ranks, which may have ended, with sums_first: a gradient that is not
  // finite is then not sought on them.
  std::optional<StepMetrics> FinishAlone();

  // Objective::MeanOf the batches; no graph, no dropout. Ranks divide the batches among them
  // (StepRanks::evaluators); the result has the same bits at any number of ranks. `metrics`, if
  // set, gets Objective::MetricsOf them.
  double Evaluate(const data::EvalBatches& batches, PreferenceMetrics* metrics = nullptr);
  // The same; or nothing, if `stop` says so. It is asked between batches, at the same ones on all
  // ranks, where it must say the same.
  std::optional<double> EvaluateUnless(const std::function<bool()>& stop,
                                       const data::EvalBatches& batches,
                                       PreferenceMetrics* metrics = nullptr);

  // The learning rates of steps that are submitted from now on.
  void SetSchedule(optim::LrSchedule schedule) { schedule_ = std::move(schedule); }

  int64_t step() const { return step_; }  // updates made, including those of earlier runs
  // After the last step that was returned; none without loss scaling.
  const std::optional<LossScale>& loss_scale() const { return loss_scale_; }
  // Updates in a row, up to the last step, that were skipped (TrainerOptions::max_skips).
  int64_t skips() const { return skips_; }
  // The same, of the guard; null without one.
  const optim::SpikeHistory* spike_history() const { return guard_ ? &guard_->history() : nullptr; }
  // How many of this trainer's steps were CUDA graphs.
  int64_t graph_replays() const { return graphs_ ? graphs_->replays() : 0; }

 private:
  // An update that the device may still be computing.
  struct Pending {
    StepMetrics metrics;             // without loss and norm
    int64_t tokens = 0;              // of all micro-batches
    int64_t divisor = 1;             // of the sums
    std::vector<HostRead> measures;  // of this rank's micro-batches, in their order
    std::optional<double> loss;      // MeanLoss, if it is known already
    HostRead values;
    // Loads of the experts: this rank's, until they are summed over the ranks.
    std::vector<HostRead> expert_reads;
    nn::LayerLoads expert_loads;
  };

  void AccumulateGradients(Pending& pending, PhaseClock& clock);
  void Update();
  void MoveExpertBiases(Pending& pending);
  void SumExpertLoads(Pending& pending);
  double MeanLoss(Pending& pending);
  void LimitNorm(Pending& pending);
  StepMetrics Collect(bool have_gradients, bool alone = false);
  std::string DescribeNonFinite(int64_t step, double loss, bool have_gradients, bool was_skipped,
                                bool alone);

  LanguageModel& model_;
  optim::Optimizer* optimizer_;
  optim::LrSchedule schedule_;
  data::Loader& loader_;
  const TrainerOptions options_;
  const Objective& objective_;
  std::optional<SampleRanks> alone_;  // where the options name no ranks
  StepRanks& ranks_;
  std::vector<std::shared_ptr<Parameter>> parameters_;
  nn::ExpertLoads experts_;
  StepState state_;
  int64_t step_;
  int64_t skips_;  // consecutive
  std::optional<optim::SpikeGuard> guard_;
  std::optional<LossScale> loss_scale_;
  data::Batch eval_batch_;
  std::optional<Pending> pending_;
  StepWork* work_ = nullptr;  // while its gradients are computed
  std::optional<StepGraphs> graphs_;
};

}  // namespace lockstep::models
