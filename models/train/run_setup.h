// Makes the parts of a run from its configuration.
#pragma once

#include <memory>
#include <optional>

#include "data/conversations/conversation_dataset.h"
#include "data/dataset.h"
#include "models/checkpoint/run_folder.h"
#include "models/gpt/gpt.h"
#include "models/options/config.h"
#include "models/options/option_offload.h"
#include "models/report/trace.h"
#include "models/train/parallel_plan.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"

namespace lockstep::models {

// The device that an option such as "auto", "cpu" or "cuda:1" names, for a single process.
// If this build or machine has none, throws an InputError that says what to do.
Device ResolveDevice(const std::string& option);

// The shape that the options ask for; vocab_size is copied, even if it is 0.
GptConfig ToGptConfig(const ModelOptions& model);

struct RunSetup {
  RunConfig config;  // as given; the fields below settle what it leaves open
  RunStart start;
  GptConfig model;     // its block_size exceeds the window if the weights have more positions
  int64_t window = 0;  // tokens of a row
  int64_t rows_per_sample = 1;  // 2 of preference tuning, whose samples are pairs of answers
  int64_t steps = 0;            // of the whole run
  int64_t decay_steps = 0;
  int64_t data_ranks = 1;       // each a process, or those of its pp, cp and tp
  int64_t micro_batches = 1;    // per step, on all ranks together
  int64_t tokens_per_step = 0;  // of all ranks
  data::Dataset dataset;
  std::optional<data::ConversationCounts> conversations{};  // that the data set consists of
  bool document_mask = false;  // data.document_mask, and always for conversations
  Device device;
  int64_t sample_tokens() const { return rows_per_sample * window; }
  bool prefers() const { return rows_per_sample == 2; }
  int64_t runtime_bytes = 0;  // of a GPU that is only planned for: what CUDA itself takes
  OffloadChoice offload{};    // of train.offload
};

// Opens the data and settles what the configuration leaves open. If the run starts from weights
// (init_from, or a checkpoint), the model has their shape, and options that say otherwise are an
// InputError. `options` are those that filled `config`. Only the device depends on the rank.
RunSetup PrepareRun(const Options& options, const RunConfig& config, const RunStart& start,
                    Device device, int64_t processes);
// The same without data, a start and steps, for planning: the data are opened only if the
// vocabulary is theirs. There need be no such device.
RunSetup PrepareShape(const Options& options, const RunConfig& config, Device device,
                      int64_t processes);

// Allocates and initialises the weights in the dtype of train.precision: for bf16 and fp16 the
// weights have 16 bits; gradients are in train.grad_dtype. The meta device is for planning.
void MaterializeFor(const RunSetup& setup, Device device, Module& model);

// The model with its weights: initialised, from init_from, or from the checkpoint; the optimizer
// with its state: fresh, or from the checkpoint. If the model is sharded before it has weights, a
// rank takes memory only for its parts, of both.
std::unique_ptr<Gpt> MakeModel(const RunSetup& setup);
void FillModel(const RunSetup& setup, Gpt& model);
std::unique_ptr<optim::Optimizer> MakeOptimizer(const RunSetup& setup, Gpt& model);
// A fresh one for a materialised model. "muon" takes the matrices of the blocks, h.*, but not those
// of routers and gates.
std::unique_ptr<optim::Optimizer> MakeFreshOptimizer(const RunSetup& setup, const Module& model);
std::unique_ptr<optim::Optimizer> MakeOptimizer(const OptimOptions& options, const Module& model,
                                                const OffloadChoice& offload = {});
optim::LrSchedule MakeSchedule(const RunSetup& setup);
// For fp16.
std::optional<LossScaleOptions> LossScalingFor(const TrainOptions& train);

}  // namespace lockstep::models
