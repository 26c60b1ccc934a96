// From a configuration to the parts of a run.
#pragma once

#include <memory>

#include "data/dataset.h"
#include "models/checkpoint/run_folder.h"
#include "models/gpt/gpt.h"
#include "models/options/config.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"

namespace lockstep::models {

// The device that an option such as "auto", "cpu" or "cuda:1" names, for a single process.
// InputError where this build or machine has none, with what to do.
Device ResolveDevice(const std::string& option);

// The shape that the options ask for; vocab_size as it stands there.
GptConfig ToGptConfig(const ModelOptions& model);

struct RunSetup {
  RunConfig config;  // as given; what it leaves open is settled by the fields below
  RunStart start;
  GptConfig model;     // its block_size exceeds the window where weights came with more positions
  int64_t window = 0;  // tokens of a training sample
  int64_t steps = 0;   // of the whole run
  int64_t decay_steps = 0;
  int64_t ranks = 1;            // data-parallel processes
  int64_t micro_batches = 1;    // of a step, on all ranks together
  int64_t tokens_per_step = 0;  // of all ranks
  data::Dataset dataset;
  Device device;
};

// Opens the data and settles what the configuration leaves open. Where the run starts from weights
// (init_from, or a checkpoint), the model's shape is theirs, and options given for it must agree:
// InputError otherwise. `options` are those that filled `config`. Nothing in it depends on the rank
// but the device.
RunSetup PrepareRun(const Options& options, const RunConfig& config, const RunStart& start,
                    Device device, int64_t ranks);

// Gives the model memory and fresh weights, as train.precision has them: in bf16 weights are bf16,
// and their gradients f32. On the meta device: for planning.
void MaterializeFor(const RunSetup& setup, Device device, Module& model);

// The model with its weights: initialised, from init_from, or from the checkpoint; the optimizer
// with its state: fresh, or from the checkpoint.
std::unique_ptr<Gpt> MakeModel(const RunSetup& setup);
std::unique_ptr<optim::Optimizer> MakeOptimizer(const RunSetup& setup, Gpt& model);
// A fresh one for a model that has its memory. "muon" takes the matrices of the blocks, h.*.
std::unique_ptr<optim::Optimizer> MakeOptimizer(const OptimOptions& options, const Module& model);
optim::LrSchedule MakeSchedule(const RunSetup& setup);

}  // namespace lockstep::models
