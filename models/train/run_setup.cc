#include "models/train/run_setup.h"

#include <algorithm>
#include <cmath>

#include "core/cuda/blaslt.h"
#include "core/cuda/device.h"
#include "core/io/file.h"
#include "data/conversations/preference_dataset.h"
#include "data/sampler.h"
#include "models/checkpoint/adapter_base.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "models/options/option_mixture.h"
#include "models/report/run_progress.h"
#include "models/train/memory_plan.h"
#include "models/train/parallelize.h"
#include "models/train/pipeline_parallel.h"
#include "models/train/run_checks.h"
#include "models/train/run_ranks.h"
#include "nn/precision.h"
#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/sgd.h"

namespace lockstep::models {
namespace {

// Whether the user wrote the option, rather than a default or a preset.
bool Explicit(const Options& options, std::string_view key) {
  return options.source(key) >= OptionSource::kFile;
}

// Takes an option of the shape from the weights; fails if the user asked for another value. With
// `zero_is_open` 0 asks for that of the weights.
template <class T>
void Adopt(const Options& options, std::string_view key, T* option, T from_weights,
           const std::string& weights, bool zero_is_open = false) {
  if (Explicit(options, key) && *option != from_weights && !(zero_is_open && *option == T{})) {
    options.Fail({key}, StrCat(options.Describe(key), ", but the weights of ", weights, " have ",
                               ToToml(OptionValue(from_weights)), ": leave ", key, " out"));
  }
  *option = from_weights;
}

// Everything but sizes.
void AdoptKinds(const Options& options, const std::string& weights, const GptConfig& shape,
                ModelOptions* m) {
  const auto word = [&](std::string_view key, std::string* option, std::string_view value) {
    Adopt(options, key, option, std::string(value), weights);
  };
  Adopt(options, "model.bias", &m->bias, shape.bias, weights);
  Adopt(options, "model.tie_embeddings", &m->tie_embeddings, shape.tie_embeddings, weights);
  word("model.norm", &m->norm, Name(shape.norm));
  Adopt(options, "model.norm_eps", &m->norm_eps, shape.norm_eps, weights);
  Adopt(options, "model.norm_offset", &m->norm_offset, shape.norm_offset, weights);
  word("model.norm_place", &m->norm_place, Name(shape.norm_place));
  Adopt(options, "model.qkv_bias", &m->qkv_bias, shape.qkv_bias, weights);
  word("model.qk_norm", &m->qk_norm, Name(shape.qk_norm));
  Adopt(options, "model.attn_scale", &m->attn_scale, shape.attn_scale, weights);
  Adopt(options, "model.attn_softcap", &m->attn_softcap, shape.attn_softcap, weights);
  Adopt(options, "model.window", &m->window, shape.window, weights);
  Adopt(options, "model.window_pattern", &m->window_pattern, shape.window_pattern, weights);
  Adopt(options, "model.embed_scale", &m->embed_scale, shape.embed_scale, weights);
  Adopt(options, "model.logit_softcap", &m->logit_softcap, shape.logit_softcap, weights);
  word("model.activation", &m->activation, Name(shape.activation));
  word("model.position", &m->position, Name(shape.position));
  const RotaryOptions& rope = shape.rope;
  Adopt(options, "model.rope_theta", &m->rope_theta, rope.theta, weights);
  word("model.rope_scaling", &m->rope_scaling, Name(rope.scaling));
  Adopt(options, "model.rope_factor", &m->rope_factor, rope.factor, weights);
  Adopt(options, "model.rope_low", &m->rope_low, rope.low, weights);
  Adopt(options, "model.rope_high", &m->rope_high, rope.high, weights);
  Adopt(options, "model.rope_original_length", &m->rope_original_length, rope.original_length,
        weights);
  Adopt(options, "model.rope_local_theta", &m->rope_local_theta, shape.rope_local_theta, weights);
  Adopt(options, "model.rope_skip", &m->rope_skip, shape.rope_skip, weights);
}

// Those that are no part of a model's shape.
void SetCoefficients(const ModelOptions& m, nn::MixtureOptions* mixture) {
  const bool sigmoid = mixture->router.score == RouterScore::kSigmoid;
  mixture->balance_loss = sigmoid ? 0 : m.balance_loss;
  mixture->z_loss = m.z_loss;
  mixture->bias_rate = sigmoid ? m.bias_rate : 0;
}

// The options have widths of shared experts in units of an expert's.
void AdoptMixture(const Options& options, const std::string& weights, const GptConfig& shape,
                  ModelOptions* m) {
  const nn::MixtureOptions& x = shape.mixture;
  Adopt(options, "model.n_expert", &m->n_expert, x.n_expert, weights);
  if (x.n_expert == 0) return CheckMixture(options, *m, weights);
  Adopt(options, "model.n_expert_used", &m->n_expert_used, x.n_expert_used, weights);
  Adopt(options, "model.n_expert_inner", &m->n_expert_inner, x.n_inner, weights, true);
  if (x.n_shared % x.n_inner != 0 && Explicit(options, "model.n_shared_expert")) {
    options.Fail({"model.n_shared_expert"},
                 StrCat(options.Describe("model.n_shared_expert"), ", but the shared expert of ",
                        weights, " is ", x.n_shared, " wide, no multiple of the ", x.n_inner,
                        " of an expert: leave model.n_shared_expert out"));
  }
  Adopt(options, "model.n_shared_expert", &m->n_shared_expert, x.n_shared / x.n_inner, weights);
  Adopt(options, "model.shared_gate", &m->shared_gate, x.shared_gate, weights);
  Adopt(options, "model.n_dense", &m->n_dense, shape.n_dense, weights);
  Adopt(options, "model.router", &m->router, std::string(RouterName(x.router)), weights);
  Adopt(options, "model.router_scale", &m->router_scale, x.router.scale, weights);
  CheckMixture(options, *m, weights);
}

GptConfig ShapeFromWeights(const Options& options, const std::string& weights, RunConfig* config) {
  GptConfig shape = ReadHfConfig(WeightsOf(weights));
  ModelOptions& m = config->model;
  Adopt(options, "model.n_layer", &m.n_layer, shape.n_layer, weights);
  Adopt(options, "model.n_head", &m.n_head, shape.n_head, weights);
  Adopt(options, "model.n_kv_head", &m.n_kv_head, shape.n_kv_head, weights, true);
  Adopt(options, "model.head_dim", &m.head_dim, shape.head_dim, weights, true);
  Adopt(options, "model.n_embd", &m.n_embd, shape.n_embd, weights);
  Adopt(options, "model.n_inner", &m.n_inner, shape.n_inner, weights, true);
  AdoptKinds(options, weights, shape, &m);
  if (m.vocab_size != 0)
    Adopt(options, "model.vocab_size", &m.vocab_size, shape.vocab_size, weights);
  if (m.block_size > shape.block_size) {
    if (Explicit(options, "model.block_size")) {
      options.Fail({"model.block_size"},
                   StrCat(options.Describe("model.block_size"), ", but the weights of ", weights,
                          " have positions for ", shape.block_size, " tokens"));
    }
    m.block_size = shape.block_size;
  }
  AdoptMixture(options, weights, shape, &m);
  shape.dropout = m.dropout;
  shape.lora = config->lora;
  if (!config->lora.init_from.empty()) {
    // A checkpoint has its adapters itself.
    const std::string from = PeftAdapter::Exists(weights) ? weights : config->lora.init_from;
    const PeftConfig adapter = PeftAdapter::Open(from).config();
    shape.lora = {.rank = adapter.rank,
                  .alpha = adapter.alpha,
                  .dropout = config->lora.dropout,
                  .targets = "those of " + from,
                  .rank_stabilized = adapter.rank_stabilized,
                  .init_from = from,
                  .base = config->lora.base};
  }
  if (const nn::MixtureOptions& x = shape.mixture; x.n_expert > 0) {
    const bool sigmoid = x.router.score == RouterScore::kSigmoid;
    const auto keep = [&](const char* key, double* option, double value) {
      if (!Explicit(options, key)) *option = value;
    };
    if (!sigmoid) keep("model.balance_loss", &m.balance_loss, x.balance_loss);
    keep("model.z_loss", &m.z_loss, x.z_loss);
    if (sigmoid) keep("model.bias_rate", &m.bias_rate, x.bias_rate);
    SetCoefficients(m, &shape.mixture);
  }
  return shape;
}

// The tokenizer beside the weights, or null. Also null for token files, which need none, if
// Lockstep does not support its kind.
std::shared_ptr<const data::Tokenizer> TokenizerOf(const std::string& weights, bool token_files) {
  const std::string file = JoinPath(weights, "tokenizer.json");
  if (!PathExists(file)) return nullptr;
  if (!token_files) return data::LoadTokenizer(file);
  try {
    return data::LoadTokenizer(file);
  } catch (const InputError&) {
    return nullptr;
  }
}

// Tokens of a row of conversations, unless the user asks for others or the weights have positions
// for fewer.
constexpr int64_t kConversationWindow = 1024;

bool Prefers(const RunConfig& config) { return config.train.objective == "dpo"; }

// Whether the data are rendered by a chat template.
bool HoldsConversations(const RunConfig& config) {
  const DataOptions& data = config.data;
  if (Prefers(config)) return true;
  if (data.format != "auto") return data.format == "chat";
  return data.mix.empty() && data::HoldsConversations(data.path, data.field);
}

// The configuration before the weights and the data settle what it leaves open.
RunConfig BeginSettling(const Options& options, const RunConfig& config, bool has_weights,
                        bool conversations) {
  RunConfig settled = config;
  if (conversations && has_weights && !Explicit(options, "model.block_size")) {
    settled.model.block_size = kConversationWindow;
  }
  return settled;
}

data::DatasetOptions ToDatasetOptions(const RunConfig& config, const std::string& weights,
                                      int64_t vocab_size) {
  data::DatasetOptions d;
  d.path = config.data.path;
  d.mix = config.data.mix;
  d.field = config.data.field;
  if (config.data.tokenizer != "auto") d.tokenizer = config.data.tokenizer;
  d.val_fraction = config.data.val_fraction;
  d.document_mask = config.data.document_mask;
  d.block_size = config.model.block_size;
  d.vocab_size = vocab_size;
  if (!weights.empty() && config.data.tokenizer == "auto") {
    const bool tokens = d.path.ends_with(".bin") || !d.mix.empty() || IsDirectory(d.path);
    d.loaded_tokenizer = TokenizerOf(weights, tokens);
  }
  return d;
}

// Where a chat template may be, the user's choice first.
std::vector<std::string> TemplateFolders(const RunConfig& config, const std::string& weights) {
  std::vector<std::string> folders;
  if (const std::string& tokenizer = config.data.tokenizer; PathExists(tokenizer)) {
    folders.push_back(IsDirectory(tokenizer) ? tokenizer : ParentPath(tokenizer));
  }
  for (const std::string& folder : {weights, config.init_from}) {
    if (!folder.empty() && (folders.empty() || folders.back() != folder)) folders.push_back(folder);
  }
  return folders;
}

// Opens the data into `setup`.
void OpenData(const RunConfig& config, const std::string& weights, int64_t vocab_size,
              bool conversations, RunSetup* setup) {
  const data::DatasetOptions d = ToDatasetOptions(config, weights, vocab_size);
  setup->document_mask = config.data.document_mask || (conversations && !Prefers(config));
  if (!conversations) {
    setup->dataset = data::OpenDataset(d);
    return;
  }
  if (!d.mix.empty())
    throw InputError("conversations and pairs of answers are for data.path, not data.mix");
  if (config.data.order == "random") {
    throw InputError(
        "data.order = \"random\" takes windows at any place of a text, but "
        "conversations are packed into rows: use shuffled or sequential");
  }
  const data::ConversationOptions c{.chat_template = config.data.chat_template,
                                    .folders = TemplateFolders(config, weights),
                                    .if_long = config.data.if_long,
                                    .special_tokens_of_users = config.data.user_special_tokens};
  if (Prefers(config)) {
    setup->dataset = data::OpenPreferences(d, c).dataset;
    return;
  }
  data::ConversationDataset opened = data::OpenConversations(d, c);
  setup->dataset = std::move(opened.dataset);
  setup->conversations = opened.counts;
}

int64_t StepsOf(const RunConfig& config, const data::Dataset& dataset, int64_t sample_tokens,
                int64_t samples_per_step) {
  if (config.train.steps > 0) return config.train.steps;
  const int64_t windows =
      data::MakeSampler(dataset, data::Order::kSequential, 0, sample_tokens).windows_per_epoch();
  const double samples = config.train.epochs * static_cast<double>(windows);
  return std::max<int64_t>(1, std::llround(samples / static_cast<double>(samples_per_step)));
}

RunSetup BeginSetup(const RunConfig& config, Device device, int64_t processes) {
  const int64_t ranks = DataRanksOf(config, processes);
  if (config.train.grad_dtype != "fp32" && processes > 1) {
    throw InputError(StrCat("train.grad_dtype = \"", config.train.grad_dtype, "\" is for a single ",
                            "process, and this run has ", processes,
                            " ranks, which sum gradients in fp32: leave train.grad_dtype out"));
  }
  RunSetup setup;
  setup.config = config;
  setup.rows_per_sample = Prefers(config) ? 2 : 1;
  setup.device = device;
  setup.data_ranks = ranks;
  return setup;
}

// What a step looks like, once setup.model has its shape and `settled` the length of its windows.
void SettleShape(const Options& options, const RunConfig& settled, RunSetup& setup) {
  const RunConfig& config = setup.config;
  setup.model.loss_chunk = config.train.loss_chunk;
  setup.model.recompute = ParseRecompute(config.train.recompute);
  CheckRecompute(options, setup);
  setup.offload = ParseOffload(config.train.offload);
  setup.model.offload_activations = setup.offload.activations;
  setup.model.offload_weights = setup.offload.weights;
  if (setup.offload.any() && setup.device.is_cpu()) {
    options.Fail(
        {"train.offload"},
        StrCat(options.Describe("train.offload"), " moves what a GPU keeps to the host, ",
               "and this run is on the CPU: leave it out, or use train.recompute = ", "\"block\""));
  }
  CheckAdapters(options, setup);
  setup.window = settled.model.block_size;
  CheckPreferences(options, setup);
  setup.micro_batches = MicroBatches(config.train, setup.data_ranks);
  CheckGradDType(setup);
  CheckShards(config, setup.micro_batches, setup.data_ranks);
  CheckTensorParallel(setup);
  CheckContextParallel(options, setup);
  CheckPipeline(setup);
  CheckExpertParallel(options, setup);
  const ParallelOptions& parallel = config.parallel;
  const bool has_other_ranks = parallel.pp > 1 || parallel.tp > 1 || parallel.cp > 1;
  if (config.dist.compress != "none" && setup.data_ranks == 1 && has_other_ranks &&
      !SumsContextWithData(config)) {
    throw InputError(
        "dist.compress is for gradients that data-parallel ranks sum, and parallel.pp, parallel.cp "
        "and parallel.tp leave only one such rank: leave dist.compress out");
  }
  if (parallel.shard != "none" && setup.data_ranks == 1 && has_other_ranks) {
    throw InputError(StrCat("parallel.shard = \"", parallel.shard,
                            "\" shares out weights among data-parallel ranks, and ",
                            "parallel.pp, parallel.cp and parallel.tp leave only one such rank, so "
                            "it would do nothing: "
                            "leave it out, or start ",
                            2 * parallel.pp * parallel.cp * parallel.tp, " processes or more"));
  }
  setup.tokens_per_step = setup.micro_batches * config.train.batch_size * setup.sample_tokens();
}

nn::MixtureOptions ToMixture(const ModelOptions& m) {
  if (m.n_expert == 0) return {};
  const nn::MlpActivation activation = ParseActivation(m.activation);
  const int64_t mlp = m.n_inner > 0 ? m.n_inner : DefaultInner(m.n_embd, activation);
  nn::MixtureOptions mixture{.n_expert = m.n_expert,
                             .n_expert_used = m.n_expert_used,
                             .n_inner = m.n_expert_inner > 0 ? m.n_expert_inner : mlp,
                             .shared_gate = m.shared_gate,
                             .router = ParseRouter(m.router)};
  mixture.n_shared = m.n_shared_expert * mixture.n_inner;
  mixture.router.scale = m.router_scale;
  SetCoefficients(m, &mixture);
  return mixture;
}

}  // namespace

GptConfig ToGptConfig(const ModelOptions& m) {
  return {.vocab_size = m.vocab_size,
          .block_size = m.block_size,
          .n_layer = m.n_layer,
          .n_head = m.n_head,
          .n_embd = m.n_embd,
          .dropout = m.dropout,
          .bias = m.bias,
          .tie_embeddings = m.tie_embeddings,
          .n_kv_head = m.n_kv_head,
          .head_dim = m.head_dim,
          .qkv_bias = m.qkv_bias,
          .qk_norm = ParseQkNorm(m.qk_norm),
          .attn_scale = m.attn_scale,
          .attn_softcap = m.attn_softcap,
          .window = m.window,
          .window_pattern = m.window_pattern,
          .n_inner = m.n_inner,
          .norm = ParseNorm(m.norm),
          .norm_eps = m.norm_eps,
          .norm_offset = m.norm_offset,
          .norm_place = ParseNormPlace(m.norm_place),
          .activation = ParseActivation(m.activation),
          .position = ParsePosition(m.position),
          .rope = {.theta = m.rope_theta,
                   .scaling = ParseRopeScaling(m.rope_scaling),
                   .factor = m.rope_factor,
                   .low = m.rope_low,
                   .high = m.rope_high,
                   .original_length = m.rope_original_length},
          .rope_local_theta = m.rope_local_theta,
          .rope_skip = m.rope_skip,
          .embed_scale = m.embed_scale,
          .logit_softcap = m.logit_softcap,
          .init_std = m.init_std > 0 ? m.init_std : 1 / std::sqrt(static_cast<double>(m.n_embd)),
          .mixture = ToMixture(m),
          .n_dense = m.n_dense};
}

// fp32 and tf32 differ in how matrices are multiplied, not in what tensors hold.
void MaterializeFor(const RunSetup& setup, Device device, Module& model) {
  nn::Materialize(model, device, static_cast<uint64_t>(setup.config.seed),
                  {.compute = WeightDType(setup.config.train.precision),
                   .reduction = WeightDType(setup.config.train.grad_dtype)});
}

Device ResolveDevice(const std::string& option) { return cuda::ParseDevice(option); }

RunSetup PrepareRun(const Options& options, const RunConfig& config, const RunStart& start,
                    Device device, int64_t processes) {
  RunSetup setup = BeginSetup(config, device, processes);
  setup.start = start;
  const std::string weights = start.checkpoint.value_or(config.init_from);
  if (!config.lora.init_from.empty() && !start.checkpoint &&
      PeftAdapter::Exists(config.init_from)) {
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
  if (conversations && !config.init_from.empty() && !Explicit(options, "optim.lr")) {
    setup.dataset.note +=
        StrCat("\n", options.Describe("optim.lr"), " is meant for random weights; ",
               "tuning usually takes 1e-5 to 5e-5, and adapters ten times that");
  }
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
  const int64_t samples = setup.micro_batches * config.train.batch_size;
  setup.steps = StepsOf(settled, setup.dataset, setup.sample_tokens(), samples);
  setup.decay_steps = config.optim.decay_steps > 0 ? config.optim.decay_steps : setup.steps;
  return setup;
}

RunSetup PrepareShape(const Options& options, const RunConfig& config, Device device,
                      int64_t processes) {
  RunSetup setup = BeginSetup(config, device, processes);
  const bool conversations = HoldsConversations(config);
  setup.document_mask = config.data.document_mask || (conversations && !Prefers(config));
  RunConfig settled = BeginSettling(options, config, !config.init_from.empty(), conversations);
  if (!config.init_from.empty()) {
    setup.model = ShapeFromWeights(options, config.init_from, &settled);
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

std::unique_ptr<Gpt> MakeModel(const RunSetup& setup) {
  auto model = std::make_unique<Gpt>(setup.model);
  FillModel(setup, *model);
  return model;
}

void FillModel(const RunSetup& setup, Gpt& model) {
  cuda::AllowTf32(setup.config.train.precision == "tf32");
  MaterializeFor(setup, setup.device, model);
  const std::string weights = setup.start.checkpoint.value_or(setup.config.init_from);
  if (!weights.empty()) LoadWeights(weights, model);
  const std::string& from = setup.model.lora.init_from;
  if (from.empty() || setup.start.checkpoint) return;
  const PeftAdapter adapter = PeftAdapter::Open(from);
  CheckBase(adapter, weights, Warn);
  adapter.LoadInto(model);
}

std::unique_ptr<optim::Optimizer> MakeOptimizer(const RunSetup& setup, Gpt& model) {
  auto optimizer = MakeFreshOptimizer(setup, model);
  if (setup.start.checkpoint) LoadOptimizerState(*setup.start.checkpoint, *optimizer);
  return optimizer;
}

std::unique_ptr<optim::Optimizer> MakeFreshOptimizer(const RunSetup& setup, const Module& model) {
  return MakeOptimizer(setup.config.optim, model, setup.offload);
}

std::optional<LossScaleOptions> LossScalingFor(const TrainOptions& train) {
  if (train.precision != "fp16") return {};
  return LossScaleOptions{.init = train.loss_scale, .growth_interval = train.loss_scale_every};
}

std::unique_ptr<optim::Optimizer> MakeOptimizer(const OptimOptions& o, const Module& model,
                                                const OffloadChoice& choice) {
  const DType state_dtype = WeightDType(o.state_dtype);
  const optim::StateOffload offload{.to_host = choice.optimizer};
  if (o.name == "sgd") {
    return std::make_unique<optim::Sgd>(model.Parameters(),
                                        optim::SgdOptions{.momentum = o.momentum,
                                                          .nesterov = o.nesterov && o.momentum > 0,
                                                          .weight_decay = o.weight_decay,
                                                          .master_weights = o.master_weights,
                                                          .state_dtype = state_dtype,
                                                          .offload = offload});
  }
  if (o.name == "lion") {
    return std::make_unique<optim::Lion>(model.Parameters(),
                                         optim::LionOptions{.beta1 = o.beta1,
                                                            .beta2 = o.beta2,
                                                            .weight_decay = o.weight_decay,
                                                            .master_weights = o.master_weights,
                                                            .state_dtype = state_dtype,
                                                            .offload = offload});
  }
  if (o.name == "muon") {
    // Rows of a router's matrix are scores of its own for each expert: no map of a hidden space.
    const auto hidden = [](const Parameter& p) {
      const std::string& name = p.name();
      return p.logical_shape().ndim() == 2 && name.starts_with("h.") &&
             !name.ends_with(".router.weight") && !name.ends_with(".shared_gate.weight");
    };
    return std::make_unique<optim::Muon>(model.Parameters(),
                                         optim::MuonOptions{.momentum = o.momentum,
                                                            .nesterov = o.nesterov,
                                                            .weight_decay = o.weight_decay,
                                                            .master_weights = o.master_weights,
                                                            .state_dtype = state_dtype,
                                                            .offload = offload,
                                                            .matrix = hidden,
                                                            .beta1 = o.beta1,
                                                            .beta2 = o.beta2,
                                                            .eps = o.eps});
  }
  LS_INVARIANT(o.name == "adamw", "no optimizer ", o.name);
  return std::make_unique<optim::AdamW>(model.Parameters(),
                                        optim::AdamWOptions{.beta1 = o.beta1,
                                                            .beta2 = o.beta2,
                                                            .eps = o.eps,
                                                            .weight_decay = o.weight_decay,
                                                            .master_weights = o.master_weights,
                                                            .state_dtype = state_dtype,
                                                            .offload = offload});
}

optim::LrSchedule MakeSchedule(const RunSetup& setup) {
  const OptimOptions& o = setup.config.optim;
  return optim::LrSchedule({.decay = optim::ParseLrDecay(o.schedule),
                            .lr = o.lr,
                            .min_lr = o.min_lr,
                            .warmup = o.warmup,
                            .decay_steps = setup.decay_steps,
                            .wsd_fraction = o.decay_fraction});
}

}  // namespace lockstep::models
