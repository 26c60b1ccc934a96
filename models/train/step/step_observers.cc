#include "models/train/step/step_observers.h"

#include "models/options/option_step_range.h"
#include "models/report/run_progress.h"

namespace lockstep::models {

StepObservers::StepObservers(const RunSetup& setup, const RunRanks& ranks,
                             const StepRanks& step_ranks, const Objective& objective, Gpt& model) {
  const LogOptions& log = setup.config.log;
  const auto traced = ParseTracedOps(log.ops);
  if (setup.start.evaluates || (log.fingerprints == 0 && !traced)) return;
  place_ = std::make_unique<ForwardPlace>(model);
  if (log.fingerprints > 0) {
    const bool graphs = AllowGraphs(setup.config) && setup.device.is_cuda() &&
                        step_ranks.may_be_graphs() && objective.is_model_loss();
    fingerprints_ = std::make_unique<FingerprintRecorder>(setup, ranks, model, *place_, graphs);
    all_.push_back(fingerprints_.get());
  }
  if (!traced) return;
  if (ranks.is_main() && setup.start.step >= traced->step) {
    Warn(StrCat("log.ops = ", log.ops,
                ": no operation will be written, since this run begins with step ",
                setup.start.step + 1));
  }
  ops_ = std::make_unique<OpTrace>(*traced, setup.config.out_dir, ranks.rank(), model.Parameters(),
                                   *place_);
  all_.push_back(ops_.get());
}

}  // namespace lockstep::models
