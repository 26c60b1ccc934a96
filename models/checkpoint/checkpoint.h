// What a training checkpoint holds, and how to restore it. checkpoint_store.h has the protocol of
// the folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/step_state.h"
#include "data/tokenizer.h"
#include "models/checkpoint/checkpoint_store.h"
#include "models/gpt/gpt.h"
#include "optim/optimizer.h"

namespace lockstep::models {

// trainer_state.json: with the weights and the optimizer's state, everything that the next step
// depends on, since random numbers and sample order are functions of seed and step.
struct TrainerState {
  int64_t step = 0;                       // updates made
  int64_t tokens_seen = 0;                // trained on, over all ranks
  double best_val_loss = 0;               // 0: not evaluated yet
  double last_loss = 0;                   // training loss of the last update
  std::string config_toml;                // the resolved configuration
  std::string data_fingerprint;           // of the training and validation tokens
  bool finished = false;                  // the run reached its last step
  std::optional<LossScale> loss_scale{};  // of fp16
};

// Writes model.safetensors, config.json, tokenizer.json (unless null), optimizer.safetensors and
// trainer_state.json as checkpoint `state.step`. IoError if they cannot be written; older
// checkpoints are kept. `val_loss`: of these weights, if it was measured.
void SaveCheckpoint(CheckpointStore& store, const TrainerState& state, Gpt& model,
                    optim::Optimizer& optimizer, const data::Tokenizer* tokenizer,
                    std::optional<double> val_loss = {});

// Of a sharded model, whose tensors all ranks bring together one after the other: what the other
// ranks do while one saves it. Collective with SaveCheckpoint. Does nothing if nothing is sharded.
void JoinCheckpoint(Gpt& model, optim::Optimizer& optimizer);

// Restores the optimizer from a checkpoint's folder, after the weights (LoadHfWeights). InputError
// if it does not fit.
void LoadOptimizerState(const std::string& path, optim::Optimizer& optimizer);

TrainerState ReadTrainerState(const std::string& path);
// Null if the model was trained on token files without a tokenizer.
std::unique_ptr<data::Tokenizer> ReadTokenizer(const std::string& path);

}  // namespace lockstep::models
