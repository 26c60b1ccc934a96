// What a run is: settled from its configuration, its data and the weights that it starts from.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "data/conversations/conversation_dataset.h"
#include "data/dataset.h"
#include "models/checkpoint/run_folder.h"
#include "models/gpt/gpt_config.h"
#include "models/options/config.h"

namespace lockstep::models {

struct RunSetup {
  // As given, except a preset's tokenizer that gives way to the data's (SettleTokenizer),
  // train.loss_chunk, which bits depend on, and which another version might choose otherwise
  // (SettleLossChunk), and what the clock settles (SettleEnd). It makes this run again, and is what
  // a run keeps of its options.
  RunConfig asked;
  // The same, with what it leaves open settled by the weights and the data: the shape of the
  // model, steps, decay_steps and warm-up.
  RunConfig config;
  RunStart start;
  // The folder of the weights that it starts from: a checkpoint to resume from, or init_from, of a
  // run's folder its best checkpoint, else the latest (CheckpointOf). Empty: random weights.
  std::string weights;
  GptConfig model;         // its block_size exceeds the window if the weights have more positions
  int64_t data_ranks = 1;  // each a process, or those of its pp, cp and tp
  int64_t micro_batches = 1;     // per step, on all ranks together
  int64_t tokens_per_step = 0;   // of all ranks
  int64_t samples_at_start = 0;  // that the checkpoint was trained on
  // Validation losses of runs in which it is equal can be compared.
  std::string measured_on{};
  data::Dataset dataset;
  std::optional<data::ConversationCounts> conversations{};  // that the data set consists of
  bool document_mask = false;  // data.document_mask, and always for conversations
  Device device;
  // For a GPU that is only planned for: what CUDA itself takes.
  int64_t runtime_bytes = 0;
  bool leaves_loss_chunk_open = false;  // neither the user nor a checkpoint said train.loss_chunk

  // Whether samples are pairs of answers, for preference tuning.
  bool prefers() const { return config.train.objective == "dpo"; }
  int64_t window() const { return config.model.block_size; }  // tokens of a row
  // Of the whole run; more than any run makes, as long as the clock has not settled them.
  int64_t steps() const {
    return config.train.is_open() ? std::numeric_limits<int64_t>::max() : config.train.steps;
  }
  int64_t sample_tokens() const { return (prefers() ? 2 : 1) * window(); }
  int64_t samples_per_step() const { return micro_batches * config.train.batch_size; }
  // The samples of the steps before `step`, at or after the start. Steps before that may have had
  // another size.
  int64_t SamplesBefore(int64_t step) const {
    return samples_at_start + (step - start.step) * samples_per_step();
  }
};

// The adapters that are loaded beside the weights; empty: none, or the weights have theirs.
std::string AdaptersOf(const RunSetup& setup);

// Opens the data and settles what the configuration leaves open. If the run starts from weights
// (init_from, or a checkpoint), the model has their shape, and options that say otherwise are an
// InputError. `options` are those that filled `config`. Only the device depends on the rank.
RunSetup PrepareRun(const Options& options, const RunConfig& config, const RunStart& start,
                    Device device, int64_t processes);
// The same without data, a start and steps, for planning: the data are opened only if the
// vocabulary is theirs. There need be no such device.
RunSetup PrepareShape(const Options& options, const RunConfig& config, Device device,
                      int64_t processes);
// Settles, with train.time_budget, after how many steps the decay begins, and the last step.
void SettleEnd(RunSetup& setup, int64_t decay_start, int64_t steps);
// Settles optim.decay_steps and optim.warmup, of a run whose train.steps are known.
void SettleSchedule(RunConfig& config);
// Chooses train.loss_chunk for the model and the batch, where it was left open: again, where a plan
// has changed them.
void SettleLossChunk(RunSetup& setup);

}  // namespace lockstep::models
