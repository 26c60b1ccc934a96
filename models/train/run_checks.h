// Refuses runs that cannot be: checks that need the model's shape, the device or the number of
// ranks.
#pragma once

#include "models/options/options.h"
#include "models/options/plan_rules.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

// What the rules on plans are asked of.
PlanFacts FactsOf(const RunSetup& setup);

// All throw InputError, which names the options and what to use instead:
// for a plan that breaks a rule (models/options/plan_rules.h), or that the library refuses: a sum
// over shards, parts of layers, or stages of a pipeline that cannot be;
void CheckPlan(const Options& options, const RunSetup& setup);
// for operations that the model lacks, or whose results have to be kept;
void CheckRecompute(const Options& options, const RunSetup& setup);
// for heads that are larger than attention's on a GPU;
void CheckHeads(const Options& options, const RunSetup& setup);
// for offload on a CPU;
void CheckOffload(const Options& options, const RunSetup& setup);
// for adapters whose targets or rank do not fit the model, and for a dropout of those of experts
// that ranks cannot draw together;
void CheckAdapters(const Options& options, const RunSetup& setup);
// for a fraction to hold out of data that have files for validation;
void CheckHeldOut(const Options& options, const RunSetup& setup);
// for a field of rows where the data have no rows;
void CheckField(const Options& options, const RunSetup& setup);
// for preference tuning of a model with losses of its own, or whose adapters its reference would
// lack;
void CheckPreferences(const Options& options, const RunSetup& setup);

// for a run that goes on with other data, or another number of tokens in a step, than its
// checkpoint was trained on, unless that is accepted;
void CheckContinues(const RunSetup& setup);
// for a checkpoint with which the run has made its last step already, unless it is its own;
void CheckHasSteps(const RunSetup& setup);
// for a run's own file, in a folder that was moved or copied, that names another folder;
void CheckOwnFile(const Options& options, const RunConfig& config);
// for a folder whose token files are all for validation;
void CheckTrainsOn(const RunSetup& setup);
// and for --eval_only without weights, or on data that the weights were not trained on by default.
void CheckEvaluation(const Options& options, const RunConfig& config);

}  // namespace lockstep::models
