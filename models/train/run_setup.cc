#include "models/train/run_setup.h"

#include <algorithm>
#include <utility>

#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/peft/adapter.h"
#include "models/options/option_recompute.h"
#include "models/train/adopt_weights.h"
#include "models/train/model_shape.h"
#include "models/train/run_checks.h"
#include "models/train/run_data.h"
#include "models/train/run_ranks.h"

namespace lockstep::models {
namespace {

// Tokens of a row of conversations, unless the user asks for others or the weights have positions
// for fewer.
constexpr int64_t kConversationWindow = 1024;
// Steps of warm-up, unless the user asks for others or the run is short.
constexpr int64_t kWarmup = 100;

// The configuration before the weights and the data settle what it leaves open.
RunConfig BeginSettling(const Options& options, const RunConfig& config, bool has_weights,
                        bool conversations) {
  RunConfig settled = config;
  if (conversations && has_weights && !options.IsWritten("model.block_size")) {
    settled.model.block_size = kConversationWindow;
  }
  return settled;
}

RunSetup BeginSetup(const RunConfig& config, const RunStart& start, Device device,
                    int64_t processes) {
  const int64_t ranks = DataRanksOf(config, processes);
  if (config.train.grad_dtype != "fp32" && processes > 1) {
    throw InputError(StrCat("train.grad_dtype = \"", config.train.grad_dtype, "\" is for a single ",
                            "process, and this run has ", processes,
                            " ranks, which sum gradients in fp32: leave train.grad_dtype out"));
  }
  RunSetup setup;
  setup.config = config;
  setup.start = start;
  if (start.checkpoint) {
    setup.weights = *start.checkpoint;
    for (const data::FileContent& file : ReadTrainerState(setup.weights).data_files) {
      if (!file.recent) setup.start.known_files.push_back(file);
    }
  } else if (!config.init_from.empty()) {
    // Other machines may have it at another path.
    const bool same = config.init_from == start.init_from;
    setup.weights = same ? start.weights : CheckpointOf(config.init_from);
  }
  int64_t& loss_chunk = setup.config.train.loss_chunk;
  if (start.checkpoint && loss_chunk < 0) {
    const std::string toml = ReadTrainerState(setup.weights).config_toml;
    loss_chunk = RunConfigFromToml(toml, setup.weights).train.loss_chunk;
  }
  setup.leaves_loss_chunk_open = loss_chunk < 0;
  setup.rows_per_sample = Prefers(config) ? 2 : 1;
  setup.device = device;
  setup.data_ranks = ranks;
  return setup;
}

// What a step looks like, once setup.model has its shape and `settled` the length of its windows.
void SettleShape(const Options& options, const RunConfig& settled, RunSetup& setup) {
  const RunConfig& config = setup.config;
  setup.window = settled.model.block_size;
  setup.model.loss_chunk = config.train.loss_chunk;
  SettleLossChunk(setup);  // a model can be made from now on
  setup.model.recompute = ParseRecompute(config.train.recompute);
  CheckRecompute(options, setup);
  setup.offload = ParseOffload(config.train.offload);
  setup.model.offload_activations = setup.offload.activations;
  setup.model.offload_weights = setup.offload.weights;
  CheckOffload(options, setup);
  CheckAdapters(options, setup);
  CheckPreferences(options, setup);
  setup.micro_batches = MicroBatches(config.train, setup.data_ranks);
  CheckGradDType(setup);
  CheckShards(config, setup.micro_batches, setup.data_ranks);
  CheckTensorParallel(setup);
  CheckContextParallel(options, setup);
  CheckPipeline(setup);
  CheckExpertParallel(options, setup);
  CheckHasDataRanks(setup);
  setup.tokens_per_step = setup.micro_batches * config.train.batch_size * setup.sample_tokens();
}

}  // namespace

void SettleLossChunk(RunSetup& setup) {
  if (!setup.leaves_loss_chunk_open) return;
  RunConfig& config = setup.config;
  // The rows of a loss: of a micro-batch, or of a chunk of its sequences.
  const int64_t pairs = config.parallel.context_pairs(), cuts = pairs > 1 ? 2 * pairs : 1;
  const int64_t rows = config.train.batch_size * setup.sample_tokens() / cuts;
  config.train.loss_chunk = ops::LossChunk(setup.model.vocab_size, setup.model.n_embd, rows);
  setup.model.loss_chunk = config.train.loss_chunk;
}

RunSetup PrepareRun(const Options& options, const RunConfig& given, const RunStart& start,
                    Device device, int64_t processes) {
  RunSetup setup = BeginSetup(SettleTokenizer(options, given), start, device, processes);
  const RunConfig& config = setup.config;
  const std::string& weights = setup.weights;
  if (!config.lora.init_from.empty() && !start.checkpoint && PeftAdapter::Exists(weights)) {
    options.Fail(
        {"lora.init_from", "init_from"},
        StrCat(options.Describe("lora.init_from"), " and ", options.Describe("init_from"),
               " both have adapters: name the weights that they belong to with init_from"));
  }
  const bool conversations = HoldsConversations(config);
  RunConfig settled = BeginSettling(options, config, !weights.empty(), conversations);
  if (!weights.empty()) setup.model = ShapeFromWeights(options, weights, &settled);
  OpenData(settled, weights, weights.empty() ? config.model.vocab_size : setup.model.vocab_size,
           conversations, &setup);
  CheckHeldOut(options, setup);
  CheckField(options, setup);
  if (weights.empty()) {
    const char* key = config.lora.rank > 0 ? "lora.rank" : "lora.init_from";
    if (config.lora.rank > 0 || !config.lora.init_from.empty()) {
      options.Fail({key, "init_from"},
                   StrCat(options.Describe(key),
                          " trains adapters of a model that is trained already, and this one ",
                          "would be random: name it with --init_from, or leave ", key, " out"));
    }
    if (settled.model.vocab_size == 0) settled.model.vocab_size = setup.dataset.vocab_size;
    setup.model = ToGptConfig(settled.model);
  }
  SettleShape(options, settled, setup);
  if (start.checkpoint) {
    setup.samples_at_start =
        ReadTrainerState(*start.checkpoint).tokens_seen / setup.sample_tokens();
  }
  setup.steps = StepsOf(setup);
  const int64_t eval_samples = config.train.eval_batches * config.train.batch_size;  // 0: all
  const auto measured_on = [&](const std::string& data) {
    return StrCat(data, " ", eval_samples, " ", setup.window, " ", config.train.objective);
  };
  setup.measured_on = measured_on(setup.dataset.fingerprint);
  // A run of an earlier version keeps what that called its data, and so its best loss.
  if (const std::string older = measured_on(setup.dataset.older_fingerprint);
      start.checkpoint && ReadTrainerState(*start.checkpoint).measured_on == older) {
    setup.measured_on = older;
  }
  setup.decay_steps = config.optim.decay_steps > 0 ? config.optim.decay_steps : setup.steps;
  setup.warmup = config.optim.warmup;
  if (setup.warmup < 0) {
    setup.warmup = std::min(kWarmup, std::min(setup.steps, setup.decay_steps) / 10);
  }
  settled.train.steps = setup.steps;
  settled.train.loss_chunk = config.train.loss_chunk;  // stands in config already
  settled.optim.decay_steps = setup.decay_steps;
  settled.optim.warmup = setup.warmup;
  if (settled.model.vocab_size == 0) settled.model.vocab_size = setup.model.vocab_size;
  setup.settled = std::move(settled);
  return setup;
}

RunSetup PrepareShape(const Options& options, const RunConfig& given, Device device,
                      int64_t processes) {
  RunSetup setup = BeginSetup(SettleTokenizer(options, given), {}, device, processes);
  const RunConfig& config = setup.config;
  const bool conversations = HoldsConversations(config);
  setup.document_mask = MasksDocuments(config, conversations);
  RunConfig settled = BeginSettling(options, config, !setup.weights.empty(), conversations);
  if (!setup.weights.empty()) {
    setup.model = ShapeFromWeights(options, setup.weights, &settled);
  } else {
    if (settled.model.vocab_size == 0) {
      RunSetup with_data;
      OpenData(settled, "", 0, conversations, &with_data);
      settled.model.vocab_size = with_data.dataset.vocab_size;
    }
    setup.model = ToGptConfig(settled.model);
    setup.model.lora = config.lora;
  }
  SettleShape(options, settled, setup);
  return setup;
}

}  // namespace lockstep::models
