// Refuses runs that cannot be: checks that need the model's shape, the device or the number of
// ranks.
#pragma once

#include <string>

#include "models/options/options.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

// Gradients in bf16 are rounded after each micro-batch, and whatever is below half a unit in the
// last place of the sum is lost; beyond this many micro-batches that is too much.
inline constexpr int64_t kMostSumsInBf16 = 8;

// All throw InputError, which names the options and what to use instead:
// for gradients in bf16 of more micro-batches than kMostSumsInBf16;
void CheckGradDType(const RunSetup& setup);
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
// for preference tuning of a model with losses of its own, or whose adapters its reference would
// lack;
void CheckPreferences(const Options& options, const RunSetup& setup);
// for weights, or sums of gradients, that cannot be sharded across data-parallel ranks;
void CheckShards(const RunConfig& config, int64_t micro_batches, int64_t ranks);
// for sums of gradients, or shares of weights, where other axes leave one data-parallel rank;
void CheckHasDataRanks(const RunSetup& setup);
// for layers that ranks cannot compute together, or whose parts cannot be rounded as the whole;
void CheckTensorParallel(const RunSetup& setup);
// for sequences that they cannot compute together;
void CheckContextParallel(const Options& options, const RunSetup& setup);
// for experts that cannot be split across ranks;
void CheckExpertParallel(const Options& options, const RunSetup& setup);
// and for a model or a step that does not fit a pipeline.
void CheckPipeline(const RunSetup& setup);

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
