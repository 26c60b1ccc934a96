// What a short run measures of a machine, for plans on it: //tools:plan --calibrate=machine.json.
#pragma once

#include <vector>

#include "models/options/config.h"
#include "models/plan/step_time.h"
#include "models/report/ledger.h"

namespace lockstep::models {

// Steps that were measured.
struct MeasuredPlan {
  PlannedModel model;
  Layout layout;
  Amounts kernel_ms;  // of a step: StepMetrics::kernel_ms
};
// Changes what `cluster` says of its device so that, of all these steps together, products,
// attention and its backward, the other kernels, the update and the host take as long as they did.
// What was not measured stays.
void Fit(const std::vector<MeasuredPlan>& measured, Cluster* cluster);

// Collective over the ranks that were started. Trains the models that --budget times, with AdamW
// and in train.precision of `config`, on the first rank; several ranks then measure the links
// between them. Returns, on the first rank, the cluster of these ranks.
Cluster Calibrate(const RunConfig& config);

}  // namespace lockstep::models
