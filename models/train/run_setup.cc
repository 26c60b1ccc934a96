#include "models/train/run_setup.h"

#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/peft/adapter.h"
#include "models/options/option_recompute.h"
#include "models/store/object_store.h"
#include "models/train/model_shape.h"
#include "models/train/run_checks.h"
#include "models/train/run_data.h"
#include "models/train/run_ranks.h"

namespace lockstep::models {
namespace {

// Tokens of a row of conversations, unless the user asks for others or the weights have positions
// for fewer.
constexpr int64_t kConversationWindow = 1024;
// Steps of warm-up, unless the user asks for others, where the clock will settle how many steps
// there are, which may be few.
constexpr int64_t kWarmupByClock = 20;

// What neither the data nor the shape of the weights settle.
RunSetup BeginSetup(const Options& options, const RunConfig& config, bool conversations,
                    const RunStart& start, Device device, int64_t processes) {
  const int64_t ranks = DataRanksOf(config, processes);
  RunSetup setup;
  setup.asked = config;
  setup.start = start;
  if (start.checkpoint) {
    setup.weights = *start.checkpoint;
    for (const data::FileContent& file : ReadTrainerState(setup.weights).data_files) {
      if (!file.recent) setup.start.known_files.push_back(file);
    }
  } else if (!config.init_from.empty()) {
    // Other machines may have it at another path, and what is fetched is in a cache of each.
    const bool same = config.init_from == start.init_from && !IsRemote(config.init_from);
    setup.weights = same ? start.weights : CheckpointOf(config.init_from);
  }
  if (start.checkpoint) {
    const std::string toml = ReadTrainerState(setup.weights).config_toml;
    TakeOverSettled(RunConfigFromToml(toml, setup.weights), &setup.asked);
  }
  setup.leaves_loss_chunk_open = setup.asked.train.loss_chunk < 0;
  int64_t& warmup = setup.asked.optim.warmup;
  if (setup.asked.train.is_open() && warmup < 0) warmup = kWarmupByClock;
  setup.device = device;
  setup.data_ranks = ranks;
  setup.config = setup.asked;
  if (conversations && !setup.weights.empty() && !options.IsWritten("model.block_size")) {
    setup.config.model.block_size = kConversationWindow;
  }
  return setup;
}

// What a step looks like, once the model has its shape.
void SettleShape(const Options& options, RunSetup& setup) {
  const RunConfig& config = setup.config;
  setup.model.loss_chunk = config.train.loss_chunk;
  setup.model.z_loss = config.train.z_loss;
  SettleLossChunk(setup);  // a model can be made from now on
  setup.model.recompute = ParseRecompute(config.train.recompute);
  CheckRecompute(options, setup);
  CheckHeads(options, setup);
  setup.model.offload = ParseOffload(config.train.offload);
  CheckOffload(options, setup);
  CheckAdapters(options, setup);
  CheckPreferences(options, setup);
  setup.micro_batches = MicroBatches(config.train, setup.data_ranks);
  CheckPlan(options, setup);
  setup.tokens_per_step = setup.micro_batches * config.train.batch_size * setup.sample_tokens();
}

// What RunSetup::measured_on is.
void SettleMeasure(RunSetup& setup) {
  const TrainOptions& train = setup.config.train;
  const int64_t eval_samples = train.eval_batches * train.batch_size;  // 0: all
  const auto measured_on = [&](const std::string& data) {
    return StrCat(data, setup.dataset.val_fingerprint, " ", eval_samples, " ", setup.window(), " ",
                  train.objective);
  };
  setup.measured_on = measured_on(setup.dataset.fingerprint);
  // A run of an earlier version keeps what that called its data, and so its best loss.
  const std::string older = measured_on(setup.dataset.older_fingerprint);
  const auto& checkpoint = setup.start.checkpoint;
  if (checkpoint && ReadTrainerState(*checkpoint).measured_on == older) setup.measured_on = older;
}

}  // namespace

void SettleEnd(RunSetup& setup, int64_t decay_start, int64_t steps) {
  for (RunConfig* config : {&setup.asked, &setup.config}) SettleSteps(decay_start, steps, config);
  setup.config.optim.decay_steps = steps;
}

void SettleSchedule(RunConfig& config) {
  config.optim.warmup = WarmupOf(config);
  if (config.optim.decay_steps == 0) config.optim.decay_steps = config.train.steps;
}

void SettleLossChunk(RunSetup& setup) {
  if (!setup.leaves_loss_chunk_open) return;
  RunConfig& config = setup.config;
  // The rows of a loss: of a micro-batch, or of a chunk of its sequences.
  const int64_t pairs = config.parallel.context_pairs(), cuts = pairs > 1 ? 2 * pairs : 1;
  const int64_t rows = config.train.batch_size * setup.sample_tokens() / cuts;
  const int64_t chunk = ops::LossChunk(setup.model.vocab_size, setup.model.n_embd, rows);
  setup.asked.train.loss_chunk = config.train.loss_chunk = setup.model.loss_chunk = chunk;
}

std::string AdaptersOf(const RunSetup& setup) {
  const bool apart = !setup.start.checkpoint && !PeftAdapter::Exists(setup.weights);
  return apart ? setup.model.lora.init_from : "";
}

RunSetup PrepareRun(const Options& options, const RunConfig& given, const RunStart& start,
                    Device device, int64_t processes) {
  const RunConfig with_tokenizer = SettleTokenizer(options, given);
  const bool conversations = HoldsConversations(with_tokenizer);
  RunSetup setup = BeginSetup(options, with_tokenizer, conversations, start, device, processes);
  RunConfig& config = setup.config;
  const std::string& weights = setup.weights;
  const std::string& adapters = config.lora.init_from;
  if (!adapters.empty() && !start.evaluates && !start.checkpoint && PeftAdapter::Exists(weights)) {
    options.Fail(
        "{lora.init_from} and {init_from} both have adapters: name the weights that they "
        "belong to with init_from");
  }
  if (config.depth > 0 && !weights.empty() && !start.checkpoint && !start.evaluates) {
    options.Fail(
        "{depth} decides a model that starts from random weights, and {init_from} has a "
        "model already: leave one of them out");
  }
  if (!weights.empty()) setup.model = ShapeFromWeights(options, weights, &config);
  OpenData(config, weights, weights.empty() ? config.model.vocab_size : setup.model.vocab_size,
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
    if (config.model.vocab_size == 0) config.model.vocab_size = setup.dataset.vocab_size;
    setup.model = ToGptConfig(config.model);
  }
  if (config.model.vocab_size == 0) config.model.vocab_size = setup.model.vocab_size;
  SettleShape(options, setup);
  if (start.checkpoint) {
    setup.samples_at_start =
        ReadTrainerState(*start.checkpoint).tokens_seen / setup.sample_tokens();
  }
  config.train.steps = StepsOf(setup);
  SettleSchedule(config);
  SettleMeasure(setup);
  return setup;
}

RunSetup PrepareShape(const Options& options, const RunConfig& given, Device device,
                      int64_t processes) {
  const RunConfig with_tokenizer = SettleTokenizer(options, given);
  const bool conversations = HoldsConversations(with_tokenizer);
  RunSetup setup = BeginSetup(options, with_tokenizer, conversations, {}, device, processes);
  RunConfig& config = setup.config;
  setup.document_mask = MasksDocuments(config, conversations);
  if (!setup.weights.empty()) {
    setup.model = ShapeFromWeights(options, setup.weights, &config);
  } else {
    if (config.model.vocab_size == 0) {
      RunSetup with_data;
      OpenData(config, "", 0, conversations, &with_data);
      config.model.vocab_size = with_data.dataset.vocab_size;
    }
    setup.model = ToGptConfig(config.model);
    setup.model.lora = config.lora;
  }
  SettleShape(options, setup);
  return setup;
}

}  // namespace lockstep::models
