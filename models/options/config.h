// The configuration of a training run, and its options. README.md explains how to add one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "models/options/option_lora.h"
#include "models/options/options.h"

namespace lockstep::models {

// The options of each section, with their defaults, what they mean, and their ranges, are in its
// .def file. The defaults make a newcomer's first run: a small character-level GPT on the embedded
// corpus, a minute or two on two cores.
#define LS_OPTION(type, name, initial, ...) type name = initial;
#define LS_OPTION_AS(key, type, name, initial, ...) type name = initial;

struct ModelOptions {
  std::string preset;
#include "models/options/model_options.def"
};

struct DataOptions {
#include "models/options/data_options.def"
};

struct TrainOptions {
#include "models/options/train_options.def"

  // Whether the clock still has to settle how many steps the run has.
  bool is_open() const { return !time_budget.empty() && steps == 0; }
};

struct OptimOptions {
#include "models/options/optim_options.def"
};

struct DpoRunOptions {
#include "models/options/dpo_options.def"
};

struct CheckpointOptions {
#include "models/options/checkpoint_options.def"
};

struct ParallelOptions {
#include "models/options/parallel_options.def"

  // The parts in which sums that are split across tp are made.
  int64_t tensor_parts() const { return virtual_tp > 0 ? virtual_tp : tp; }
  // The pairs of chunks into which sequences are cut; 1: they are not.
  int64_t context_pairs() const { return virtual_cp > 0 ? virtual_cp : cp; }
  // Across how many neighbouring data ranks, with the ranks that compute the same sequences as each
  // of them, the experts are split. 1: only across the latter.
  int64_t data_ranks_of_experts() const { return std::max<int64_t>(1, ep / cp); }
};

struct DistOptions {
#include "models/options/dist_options.def"
};

struct EvalTaskOptions {
#include "models/options/eval_options.def"
};

struct LogOptions {
#include "models/options/log_options.def"
};

struct RunConfig {
  int64_t depth = 0;
#include "models/options/run_options.def"
  ModelOptions model;
  DataOptions data;
  TrainOptions train;
  OptimOptions optim;
  LoraOptions lora;
  DpoRunOptions dpo;
  EvalTaskOptions eval;
  CheckpointOptions checkpoint;
  ParallelOptions parallel;
  DistOptions dist;
  LogOptions log;
  // The keys of the options that the user wrote. What else a program sets counts as written when
  // the configuration is read back from its file.
  std::set<std::string> written;
};

#undef LS_OPTION
#undef LS_OPTION_AS

// Adds model.*.
void AddModelOptions(Options& options, ModelOptions& model);

// Adds all options of a run, its presets and the checks that span options. `config` must outlive
// `options`; its values now are the defaults.
void AddRunOptions(Options& options, RunConfig& config);

// For configurations that a program fills in itself: the same checks as for a user's options.
// Throws InputError.
void Validate(const RunConfig& config);

// What the clock settles in a run with train.time_budget, as if the user had written it: where the
// decay begins, and the last step.
void SettleSteps(int64_t decay_start, int64_t steps, RunConfig* config);

// The steps over which the learning rate of a run with train.steps rises: optim.warmup, or where
// that is left open 100, or a tenth of the run or of its decay if that is less. -1 if both are
// open.
int64_t WarmupOf(const RunConfig& config);

// The dtype of weights and activations in train.precision, which is one of its choices.
DType WeightDType(std::string_view precision);

// Micro-batches per update, of all `ranks` data-parallel ranks together; their shares may be
// unequal. Throws InputError, with the nearest values that work, if global_batch_size is not a
// multiple of batch_size, makes fewer than one for each rank, or contradicts grad_accum.
int64_t MicroBatches(const TrainOptions& train, int64_t ranks);

// The TOML text of a run folder's config.toml, and back. Throws InputError; errors call it `name`.
std::string ToToml(const RunConfig& config);
RunConfig RunConfigFromToml(std::string_view toml, const std::string& name);

// Every option of two runs, and those in which they differ.
std::vector<OptionDifference> Compare(const RunConfig& a, const RunConfig& b);
std::vector<OptionDifference> Difference(const RunConfig& a, const RunConfig& b);

}  // namespace lockstep::models
