// Whether a run is healthy, by rules that a person would apply to its curves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/report/run_history.h"
#include "models/train/utilization.h"

namespace lockstep::models {

enum class Health { kGood, kWatch, kBad, kUnknown };  // kUnknown: too early to tell

// Facts of the run that are not in its history.
struct RunPlan {
  int64_t steps = 0;  // of the whole run
  int64_t tokens_per_step = 0;
  int64_t vocab_size = 0;                  // 0: not known
  int64_t planned_memory = 0;              // bytes at the peak of a step; 0: not planned
  std::optional<double> indifferent_loss;  // preference tuning: a pair's loss without preference
  int64_t best_checkpoint = -1;  // step of the kept one with the lowest validation loss; -1: none
  Utilization utilization;
  bool finished = false;  // no step will follow
  bool interrupted = false;
  std::string failure;  // the error that ended the run; empty: none did
  bool ended() const { return finished || interrupted || !failure.empty(); }
};

// One number and what it means.
struct Finding {
  std::string label, value, unit, text;
  Health health = Health::kUnknown;
};

struct RunHealth {
  Health health = Health::kUnknown;
  std::string headline;  // a few words
  std::string text;      // a sentence or two, with what to do if something is wrong
  std::vector<Finding> findings;
};

// The rules, all on curves smoothed over a twentieth of the run:
//   diverging    a loss that is not finite, or a training loss that has risen by a quarter of its
//                total fall, and by at least 0.1 nats
//   overfitting  a validation loss over 1% above its best while the training loss kept falling
//   falling      0.5% or more over the last third of the run; else flat
// An error that ended the run takes the place of the verdict on the loss.
// Gradients: spikes are steps at 10 times the median norm in the later half of the run; there, the
// loss scale should skip under 2% of updates. Speed: the
// last tenth at least 20% below the median is slowing down; quartiles a factor of 1.5 apart are
// unsteady; a rank for which the others wait is named (dist::SlowRanks). Time: waiting for data
// should be under 10% of a step, pauses for evaluation, samples and checkpoints under 30% of the
// whole.
RunHealth Judge(const RunHistory& history, const RunPlan& plan);

}  // namespace lockstep::models
