#include "models/options/config_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>

#include "core/error.h"
#include "models/options/option_recompute.h"
#include "models/options/option_step_range.h"
#include "models/options/plan_rules.h"

namespace lockstep::models {
namespace {

// For two options that exclude each other (set: above 0): where both are set, the one from the
// stronger source wins and the other becomes 0. False if both come from the same source.
template <class A, class B>
bool StrongerWins(Options& options, std::string_view a, A a_value, std::string_view b, B b_value) {
  if (!(a_value > 0) || !(b_value > 0)) return true;
  if (options.source(a) == options.source(b)) return false;
  if (options.source(a) > options.source(b)) {
    options.Derive(b, B{0}, a);
  } else {
    options.Derive(a, A{0}, b);
  }
  return true;
}

OptionValue DefaultOf(std::string_view key) {
  struct Defaults {
    Defaults() { AddRunOptions(options, config); }
    RunConfig config;
    Options options{{.name = "train_gpt", .summary = ""}};
  };
  static const Defaults defaults;
  return defaults.options.value(key);
}

// Fails if one of the keys differs from its default although it has no effect without the setting
// `needs`.
void CheckEffect(const Options& options, std::initializer_list<std::string_view> keys,
                 bool has_effect, std::string_view needs) {
  for (const std::string_view key : keys) {
    const OptionValue initial = DefaultOf(key);
    if (has_effect || options.value(key) == initial) continue;
    options.Fail({key}, StrCat(options.Describe(key), " does nothing without ", needs, ": use ",
                               needs, ", or ", key, " = ", ToToml(initial)));
  }
}

void CheckTrace(Options& options, const RunConfig& config) {
  const auto range = ParseStepRange(config.log.trace);
  const int64_t steps = config.train.steps;
  if (!range || steps == 0 || range->last <= steps) return;
  options.Fail(StrCat("{log.trace} reaches past {train.steps}: write log.trace = \"",
                      std::min(range->first, steps), ":", steps, "\""));
}

void CheckOps(Options& options, const RunConfig& config) {
  const auto traced = ParseTracedOps(config.log.ops);
  if (!traced) return;
  const int64_t steps = config.train.steps;
  if (steps > 0 && traced->step > steps) {
    options.Fail(StrCat("{log.ops} is past {train.steps}: write log.ops = \"", steps, "\""));
  }
  if (config.train.objective != "dpo" || traced->event != kKeepModules) return;
  options.Fail(
      StrCat("{log.ops} keeps what each module gives once, and with {train.objective} "
             "modules run twice, as policy and as reference: write log.ops = \"",
             traced->step, "\""));
}

void CheckDepth(Options& options, const RunConfig& config) {
  if (config.depth == 0 || config.model.preset.empty()) return;
  options.Fail(
      "{depth} and {model.preset} both decide the model and how it is trained: leave one "
      "of them out");
}

void CheckLength(Options& options, const TrainOptions& train) {
  constexpr std::string_view kSteps = "train.steps", kEpochs = "train.epochs",
                             kRatio = "train.tokens_per_parameter";
  const auto one_of = [&](std::string_view a, const auto& a_value, std::string_view b,
                          const auto& b_value) {
    if (StrongerWins(options, a, a_value, b, b_value)) return;
    options.Fail({a, b}, StrCat(options.Describe(a), " and ", options.Describe(b),
                                " contradict each other: keep one of them and set the other to 0"));
  };
  one_of(kSteps, train.steps, kEpochs, train.epochs);
  one_of(kSteps, train.steps, kRatio, train.tokens_per_parameter);
  one_of(kEpochs, train.epochs, kRatio, train.tokens_per_parameter);
  if (train.steps == 0 && train.epochs == 0 && train.tokens_per_parameter == 0 &&
      !train.is_open()) {
    options.Fail({kSteps, kEpochs, kRatio},
                 "train.steps, train.epochs and train.tokens_per_parameter are all 0: set one of "
                 "them, such as train.steps = 1000");
  }
}

// The clock decides the steps; once it has, as optim.decay_start shows, train.steps counts.
void CheckTimeBudget(Options& options, const RunConfig& config) {
  constexpr std::string_view kTime = "train.time_budget", kStart = "optim.decay_start";
  const TrainOptions& train = config.train;
  const OptimOptions& optim = config.optim;
  if (train.time_budget.empty()) return;
  const OptionSource time = options.source(kTime);
  for (const auto& [key, is_set] :
       {std::pair<std::string_view, bool>("train.steps", train.steps > 0),
        {"train.epochs", train.epochs > 0},
        {"train.tokens_per_parameter", train.tokens_per_parameter > 0}}) {
    if (!is_set || options.source(key) <= time) continue;
    if (options.source(kStart) < options.source(key)) options.Derive(kStart, int64_t{0}, key);
    return options.Derive(kTime, std::string(), key);
  }
  const bool settled = train.steps > 0 && options.source("train.steps") == time &&
                       optim.decay_start > 0 && options.source(kStart) == time;
  const auto leave_out = [&](std::string_view key, bool is_set, const OptionValue& none) {
    if (!is_set) return;
    if (options.source(key) == time) {
      options.Fail({kTime, key}, StrCat(options.Describe(kTime), " and ", options.Describe(key),
                                        " contradict each other, since the clock decides that: ",
                                        "leave one of them out"));
    }
    options.Derive(key, none, kTime);
  };
  if (!settled) {
    leave_out("train.steps", train.steps > 0, int64_t{0});
    leave_out("train.epochs", train.epochs > 0, 0.0);
    leave_out("train.tokens_per_parameter", train.tokens_per_parameter > 0, 0.0);
    leave_out(kStart, optim.decay_start > 0, int64_t{0});
  }
  leave_out("optim.decay_steps", optim.decay_steps > 0, int64_t{0});
  if (!options.IsWritten("optim.schedule")) {
    options.Derive("optim.schedule", std::string("wsd"), kTime);
  }
  if (!options.IsWritten("optim.weight_decay_schedule")) {
    options.Derive("optim.weight_decay_schedule", std::string("constant"), kTime);
  }
  const auto refuse = [&](bool bad, std::string_view key, std::string_view why) {
    if (!bad) return;
    options.Fail({kTime, key},
                 StrCat(options.Describe(kTime), " with ", options.Describe(key), ": ", why));
  };
  refuse(optim.schedule != "wsd", "optim.schedule",
         "the clock says when the decay begins, so the schedule must be able to wait: use "
         "optim.schedule = \"wsd\"");
  refuse(optim.weight_decay_schedule != "constant", "optim.weight_decay_schedule",
         "it falls from the first step to the last, which is not known then: use "
         "optim.weight_decay_schedule = \"constant\"");
}

void CheckBatch(Options& options, const TrainOptions& train) {
  StrongerWins(options, "train.grad_accum", train.grad_accum, "train.global_batch_size",
               train.global_batch_size);
  if (train.global_batch_size == 0) return;
  // The number of ranks is not known here; what fails for one rank fails for any.
  try {
    const int64_t micro_batch = train.batch_size * std::max<int64_t>(train.grad_accum, 1);
    if (train.grad_accum == 0 || train.global_batch_size % micro_batch != 0) MicroBatches(train, 1);
  } catch (const InputError& error) {
    options.Fail({"train.global_batch_size", "train.batch_size", "train.grad_accum"}, error.what());
  }
}

void CheckHeads(Options& options, const ModelOptions& model) {
  if (model.head_dim > 0 || model.n_embd % model.n_head == 0) return;
  const int64_t lower = model.n_embd / model.n_head * model.n_head;
  int64_t head = model.n_head;
  while (model.n_embd % head != 0) --head;
  options.Fail(StrCat("{model.n_embd} is not a multiple of {model.n_head}: use model.n_embd = ",
                      lower > 0 ? StrCat(lower, " or ") : "", lower + model.n_head,
                      ", or model.n_head = ", head));
}

void CheckKvHeads(Options& options, const ModelOptions& model) {
  if (model.n_kv_head == 0 || model.n_head % model.n_kv_head == 0) return;
  int64_t heads = std::min(model.n_kv_head, model.n_head);
  while (model.n_head % heads != 0) --heads;
  options.Fail(
      {"model.n_kv_head", "model.n_head"},
      StrCat("{model.n_head} is not a multiple of {model.n_kv_head}: use model.n_kv_head = ", heads,
             ", or model.n_head = ", (model.n_head / model.n_kv_head + 1) * model.n_kv_head));
}

void CheckRecomputedLayers(Options& options, const RunConfig& config) {
  if (ParseRecompute(config.train.recompute).layers <= config.model.n_layer) return;
  options.Fail(
      "{train.recompute} names more layers than {model.n_layer} has: use train.recompute "
      "= \"block\", of all layers");
}

void CheckPrecision(Options& options, const RunConfig& config) {
  const TrainOptions& t = config.train;
  CheckEffect(options, {"train.loss_scale", "train.loss_scale_every"}, t.precision == "fp16",
              "train.precision = \"fp16\"");
  if (int exponent; std::frexp(t.loss_scale, &exponent) != 0.5) {
    options.Fail(
        StrCat("{train.loss_scale} is not a power of two, and would "
               "round gradients: use train.loss_scale = ",
               ToToml(OptionValue(std::ldexp(0.5, exponent)))));
  }
  CheckEffect(options, {"optim.master_weights", "train.grad_dtype", "train.numerics"},
              t.precision == "bf16", "train.precision = \"bf16\"");
  CheckEffect(options, {"train.grad_dtype"}, config.dist.reduction == "fast",
              "dist.reduction = \"fast\"");
}

void CheckOptimizer(Options& options, const OptimOptions& optim) {
  // Stochastic gradient descent without momentum keeps nothing.
  CheckEffect(options, {"optim.state_dtype"}, optim.name != "sgd" || optim.momentum > 0,
              "optim.momentum above 0");
  const bool muon = optim.name == "muon";
  CheckEffect(options, {"optim.muon_scale", "optim.muon_dtype", "optim.muon_split"}, muon,
              "optim.name = \"muon\"");
  CheckEffect(options, {"optim.weight_decay_schedule", "optim.cautious_weight_decay"},
              muon || optim.name == "adamw", "optim.name = \"adamw\" or \"muon\"");
}

void CheckRope(Options& options, const ModelOptions& model) {
  const ModelOptions& m = model;
  const bool rope = m.position == "rope", llama3 = m.rope_scaling == "llama3";
  constexpr std::string_view kRope = "model.position = \"rope\"";
  CheckEffect(options, {"model.rope_theta", "model.rope_scaling"}, rope, kRope);
  CheckEffect(options, {"model.rope_factor"}, m.rope_scaling != "none",
              "model.rope_scaling = \"linear\" or \"llama3\"");
  CheckEffect(options, {"model.rope_low", "model.rope_high", "model.rope_original_length"}, llama3,
              "model.rope_scaling = \"llama3\"");
  CheckEffect(options, {"model.rope_local_theta"}, rope && m.window > 0,
              "model.position = \"rope\" and model.window above 0");
  CheckEffect(options, {"model.rope_skip", "model.embed_scale"}, rope, kRope);
  CheckEffect(options, {"model.window_pattern"}, m.window > 0, "model.window above 0");
  if (!rope) return;
  if (m.head_dim % 2 != 0) {
    options.Fail(StrCat("{model.head_dim} is odd, but rope rotates pairs: use model.head_dim = ",
                        m.head_dim + 1, ", or model.position = \"learned\""));
  }
  if (m.head_dim == 0 && m.n_embd / m.n_head % 2 != 0) {
    options.Fail(StrCat("{model.n_embd} and {model.n_head} make heads of ", m.n_embd / m.n_head,
                        ", but rope rotates pairs and needs an even size: use model.n_embd = ",
                        m.n_head * (m.n_embd / m.n_head + 1), ", or model.position = \"learned\""));
  }
  if (llama3 && m.rope_low >= m.rope_high) {
    options.Fail(
        "{model.rope_low} is not below {model.rope_high}: Llama 3 has model.rope_low = 1 "
        "and model.rope_high = 4");
  }
}

void CheckSchedule(Options& options, const RunConfig& config) {
  const OptimOptions& optim = config.optim;
  const double tenth = std::strtod(StrCat(optim.lr / 10).c_str(), nullptr);  // six digits will do
  if (optim.min_lr > optim.lr)
    options.Fail({"optim.lr", "optim.min_lr"},
                 StrCat("{optim.min_lr} is above {optim.lr}: use optim.min_lr = ",
                        ToToml(OptionValue(tenth)), ", a tenth, or 0"));
  if (optim.decay_steps > 0 && optim.warmup > optim.decay_steps)
    options.Fail(StrCat("{optim.warmup} is longer than {optim.decay_steps}: use optim.warmup = ",
                        optim.decay_steps, " at most, or optim.decay_steps = 0, the whole run"));
}

void CheckDecayStart(const Options& options, const RunConfig& config) {
  const OptimOptions& optim = config.optim;
  CheckEffect(options, {"optim.decay_start"}, optim.schedule == "wsd", "optim.schedule = \"wsd\"");
  const char* const key = optim.decay_steps > 0 ? "optim.decay_steps" : "train.steps";
  const int64_t end = optim.decay_steps > 0 ? optim.decay_steps : config.train.steps;
  if (optim.decay_start == 0 || end == 0 || optim.decay_start < end) return;
  options.Fail({"optim.decay_start", key},
               StrCat("{optim.decay_start} is not before the decay's end, ", options.Describe(key),
                      ": use optim.decay_start = ", end * 4 / 5, ", or leave it out"));
}

void CheckLora(const Options& options, const LoraOptions& lora) {
  if (!lora.init_from.empty() && lora.rank > 0) {
    options.Fail(
        "{lora.rank} makes new adapters, and {lora.init_from} names adapters with ranks "
        "of their own: leave one of them out");
  }
  constexpr std::string_view kRank = "lora.rank = 16";
  const bool is_new = lora.rank > 0, adapters = is_new || !lora.init_from.empty();
  CheckEffect(options, {"lora.alpha"}, is_new, kRank);
  CheckEffect(options, {"lora.dropout", "lora.base"}, adapters, kRank);
  CheckEffect(options, {"lora.targets", "lora.rank_stabilized", "lora.modules_to_save"}, is_new,
              kRank);
}

void CheckEvalTasks(const Options& options, const EvalTaskOptions& eval) {
  CheckEffect(options, {"eval.data", "eval.every", "eval.limit", "eval.shots"}, !eval.tasks.empty(),
              "eval.tasks = \"hellaswag\"");
}

void CheckDpo(const Options& options, const RunConfig& config) {
  const bool on = config.train.objective == "dpo";
  CheckEffect(options, {"dpo.loss", "dpo.beta", "dpo.label_smoothing"}, on,
              "train.objective = \"dpo\"");
  if (!on) return;
  CheckEffect(options, {"train.z_loss"}, false, "train.objective = \"lm\"");
  const auto refuse = [&](bool bad, std::string_view key, std::string_view why) {
    if (!bad) return;
    options.Fail({"train.objective", key},
                 StrCat("{train.objective} with ", options.Describe(key), ": ", why));
  };
  refuse(!config.lora.init_from.empty(), "lora.init_from",
         "the reference is the model without its adapters, and would lack these: merge them first "
         "(export_gpt --checkpoint=BASE --adapter=FOLDER --out=merged), and train new ones with "
         "init_from=merged and lora.rank = 16");
  refuse(config.lora.rank == 0, "lora.rank",
         "the reference is the model without its adapters, so there must be some: use "
         "lora.rank = 16");
  refuse(config.dpo.loss == "ipo" && config.dpo.label_smoothing > 0, "dpo.label_smoothing",
         "the ipo loss has no smoothing: leave it out");
  refuse(!config.lora.modules_to_save.empty(), "lora.modules_to_save",
         "the reference is the model without its adapters, and would have what else is trained: "
         "leave it out");
  constexpr std::string_view kDropout =
      "the reference has no dropout, and with it answers would differ by chance: leave it out";
  refuse(config.model.dropout > 0, "model.dropout", kDropout);
  refuse(config.lora.dropout > 0, "lora.dropout", kDropout);
  refuse(config.data.document_mask, "data.document_mask",
         "each answer has a row of its own: leave it out");
  refuse(config.data.format == "text", "data.format", "pairs of answers are conversations");
}

}  // namespace

void CheckMixture(const Options& options, const ModelOptions& model, const std::string& weights) {
  const ModelOptions& m = model;
  const bool experts = m.n_expert > 0, sigmoid = m.router == "sigmoid";
  const auto needs = [&](std::string_view key, bool has_effect, std::string_view what) {
    if (weights.empty()) return CheckEffect(options, {key}, has_effect, what);
    if (has_effect || !options.IsWritten(key) || options.value(key) == DefaultOf(key)) return;
    options.Fail({key},
                 StrCat(options.Describe(key), " does nothing without ", what,
                        ", which the weights of ", weights, " do not have: leave ", key, " out"));
  };
  for (const char* key : {"model.n_expert_used", "model.n_expert_inner", "model.n_shared_expert",
                          "model.n_dense", "model.router", "model.router_scale", "model.z_loss"}) {
    needs(key, experts, weights.empty() ? "model.n_expert = 8" : "experts");
  }
  needs("model.balance_loss", experts && !sigmoid,
        "model.router = \"softmax\" or \"softmax_all\" and experts");
  needs("model.bias_rate", experts && sigmoid, "model.router = \"sigmoid\"");
  needs("model.shared_gate", m.n_shared_expert > 0 || (experts && !weights.empty()),
        "model.n_shared_expert = 1");
  if (!experts || !weights.empty()) return;
  if (m.n_expert_used > m.n_expert) {
    options.Fail(
        StrCat("{model.n_expert_used} is more than {model.n_expert}: use model.n_expert_used = ",
               m.n_expert, " at most"));
  }
  if (m.n_dense >= m.n_layer) {
    options.Fail(StrCat(
        "{model.n_dense} leaves no layer of {model.n_layer} to experts: use model.n_dense = ",
        m.n_layer - 1, " at most, or model.n_expert = 0"));
  }
}

namespace {

void CheckRounds(const Options& options, const DistOptions& dist) {
  CheckEffect(options, {"dist.outer_lr", "dist.outer_momentum", "dist.outer_dtype"},
              dist.outer_every > 0, "dist.outer_every = 50");
}

}  // namespace

void CheckRun(Options& options, const RunConfig& config) {
  CheckDepth(options, config);
  CheckTimeBudget(options, config);
  CheckPlan(options, {.config = config});
  CheckHeads(options, config.model);
  CheckKvHeads(options, config.model);
  // A model loaded from files has their shape, whatever the options are.
  if (config.init_from.empty()) {
    CheckRope(options, config.model);
    CheckMixture(options, config.model);
    CheckRecomputedLayers(options, config);
  }
  if (!config.data.path.empty() && !config.data.mix.empty()) {
    options.Fail("{data.path} and {data.mix} exclude each other: name all sources in data.mix");
  }
  if (!config.data.val_path.empty() && config.data.val_fraction != DataOptions().val_fraction) {
    options.Fail("{data.val_fraction} does nothing beside {data.val_path}: leave one of them out");
  }
  CheckLength(options, config.train);
  CheckBatch(options, config.train);
  CheckSchedule(options, config);
  CheckDecayStart(options, config);
  CheckPrecision(options, config);
  CheckOptimizer(options, config.optim);
  CheckRounds(options, config.dist);
  CheckLora(options, config.lora);
  CheckDpo(options, config);
  CheckEvalTasks(options, config.eval);
  CheckTrace(options, config);
  CheckOps(options, config);
}

}  // namespace lockstep::models
