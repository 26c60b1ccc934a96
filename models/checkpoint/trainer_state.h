// trainer_state.json of a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/step_state.h"
#include "data/file_content.h"
#include "optim/spike_guard.h"

namespace lockstep::models {

// With the weights and the optimizer's state, everything that the next step depends on, since
// random numbers and sample order are functions of seed and step.
struct TrainerState {
  int64_t step = 0;                // updates made
  int64_t tokens_seen = 0;         // trained on, over all ranks
  int64_t tokens_per_step = 0;     // of the last step
  double best_val_loss = 0;        // 0: none was finite yet
  std::string measured_on{};       // what validation losses can be compared with
  double last_loss = 0;            // training loss of the last update
  std::optional<double> lr{};      // of the last update; none in older ones
  std::string config_toml{};       // the resolved configuration
  std::string arithmetic{};        // what else decided the bits; none in older ones
  std::string data_fingerprint{};  // of the training and validation tokens
  // The token files among them; none in older checkpoints.
  std::vector<data::FileContent> data_files{};
  bool finished = false;  // nothing is left to do
  double seconds = 0;     // that the run has taken so far; only with train.time_budget
  // Where each rank makes steps of its own (dist::DiLoCo): how many have an optimizer state, a loss
  // scale and a spike history each. 0: the ranks make every step together.
  int64_t workers = 0;
  std::optional<LossScale> loss_scale{};  // of fp16
  optim::SpikeHistory spike_history{};    // empty without train.spike
  int64_t skips = 0;                      // updates just skipped in a row (train.max_skips)
  // For a model with adapters, whose checkpoints leave out the other weights: the folder that has
  // these, and its HashOfBase. The adapters' files have both.
  std::string base{}, base_hash{};
  // If a signal left out what was due after the step (an evaluation, a sample), which is then made
  // before the next step: the step's line of metrics.jsonl, without its evaluation. Else empty.
  std::string unfinished_metrics{};
};

std::string ToJson(const TrainerState& state);
// Of a checkpoint. `kind`: a WorkerFile.
TrainerState ReadTrainerState(const std::string& path, const std::string& kind = "trainer_state");
// The same of the text of its file, `source`.
TrainerState ParseTrainerState(const std::string& text, const std::string& source);

}  // namespace lockstep::models
