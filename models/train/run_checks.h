// Refuses runs that cannot be: checks that need the model's shape, the device or the number of
// ranks.
#pragma once

#include <string>

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
// for offload on a CPU;
void CheckOffload(const Options& options, const RunSetup& setup);
// for adapters whose targets or rank do not fit the model;
void CheckAdapters(const Options& options, const RunSetup& setup);
// for a fraction to hold out of data that have files for validation;
void CheckHeldOut(const Options& options, const RunSetup& setup);
// for a field of rows where the data have no rows;
void CheckField(const Options& options, const RunSetup& setup);
// and for preference tuning of a model with losses of its own, or whose adapters its reference
// would lack.
void CheckPreferences(const Options& options, const RunSetup& setup);

// A note on a plan that gives the right weights, but gains nothing; "": none.
std::string NoteOnPlan(const RunSetup& setup);
// The same of texts that are trained on, though their names say that they are held out.
std::string NoteOnSplits(const DataOptions& options);
// The same of a warm-up that takes most of the run.
std::string NoteOnWarmup(const Options& options, const RunSetup& setup);
// The same of a learning rate with which a resumed run goes on far above that of its last step, or
// that has not decayed when the run ends.
std::string NoteOnDecay(const Options& options, const RunSetup& setup);
// The same of a default learning rate, where weights are tuned on conversations or pairs.
std::string NoteOnRate(const Options& options, const RunSetup& setup);

}  // namespace lockstep::models
