#include "models/options/config.h"

#include <algorithm>

#include "core/error.h"
#include "core/io/file.h"
#include "models/options/config_checks.h"
#include "models/options/depth_laws.h"
#include "models/options/option_offload.h"
#include "models/options/option_recompute.h"
#include "models/options/option_step_range.h"
#include "models/options/option_text.h"
#include "models/options/presets.h"

namespace lockstep::models {
namespace {

// Products of these stay within 64 bits.
constexpr double kMaxBatch = 1e7;
constexpr double kMaxSteps = 1e15;
constexpr double kMaxTokens = 1e9;  // ids are i32
constexpr double kMaxMib = 65536;

std::string CheckNotEmpty(const std::string& text) {
  return text.empty() ? "must not be empty" : "";
}

std::string CheckDevice(const std::string& text) {
  if (text == "auto" || text == "cpu") return "";
  for (const std::string_view name : {"cuda", "sim"}) {
    if (text == name) return "";
    if (!text.starts_with(std::string(name) + ":")) continue;
    const std::string index = text.substr(name.size() + 1);
    if (!index.empty() && index.size() <= 3 &&
        index.find_first_not_of("0123456789") == std::string::npos)
      return "";
    return StrCat("the index of the device must be a number, as in ", name, ":0");
  }
  return "must be auto, cpu, cuda, cuda:0, sim or sim:0";
}

std::string CheckTokenizer(const std::string& text) {
  const bool named = text == "auto" || text == "char" || text == "byte" || text == "gpt2";
  if (named || text.find_first_of("/.") != std::string::npos || PathExists(text)) return "";
  return StrCat(
      "must be auto, char, byte, gpt2, or the path of a tokenizer file or folder, and "
      "there is no \"",
      text, "\" in this folder");
}

// What `parse` says of the text; "" if nothing.
template <auto parse>
std::string Check(const std::string& text) {
  try {
    parse(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

#define LS_OPTION(type, name, initial, ...) \
  options.Add(StrCat(section, #name), &section_options.name, __VA_ARGS__);
#define LS_OPTION_AS(key, type, name, initial, ...) \
  options.Add(key, &section_options.name, __VA_ARGS__);

void AddSection(Options& options, const char* section, RunConfig& section_options) {
#include "models/options/run_options.def"
}

void AddSection(Options& options, const char* section, ModelOptions& section_options) {
#include "models/options/model_options.def"
}

void AddSection(Options& options, const char* section, DataOptions& section_options) {
#include "models/options/data_options.def"
}

void AddSection(Options& options, const char* section, TrainOptions& section_options) {
#include "models/options/train_options.def"
}

void AddSection(Options& options, const char* section, OptimOptions& section_options) {
#include "models/options/optim_options.def"
}

void AddSection(Options& options, const char* section, LoraOptions& section_options) {
#include "models/options/lora_options.def"
}

void AddSection(Options& options, const char* section, DpoRunOptions& section_options) {
#include "models/options/dpo_options.def"
}

void AddSection(Options& options, const char* section, EvalTaskOptions& section_options) {
#include "models/options/eval_options.def"
}

void AddSection(Options& options, const char* section, CheckpointOptions& section_options) {
#include "models/options/checkpoint_options.def"
}

void AddSection(Options& options, const char* section, ParallelOptions& section_options) {
#include "models/options/parallel_options.def"
}

void AddSection(Options& options, const char* section, DistOptions& section_options) {
#include "models/options/dist_options.def"
}

void AddSection(Options& options, const char* section, LogOptions& section_options) {
#include "models/options/log_options.def"
}

#undef LS_OPTION
#undef LS_OPTION_AS

}  // namespace

void AddModelOptions(Options& options, ModelOptions& model) {
  options.AddPresets("model.preset", &model.preset, Presets(),
                     {.operational = true,
                      .doc = "named configuration to start from; everything else overrides it"});
  AddSection(options, "model.", model);
}

void AddRunOptions(Options& options, RunConfig& config) {
  options.AddDial("depth", &config.depth, FollowDepth,
                  {.min = 0,
                   .max = kMaxDepth,
                   .operational = true,
                   .doc = "one dial for a good model soon: layers, from which width, context, "
                          "batch, length, rates and the rest of the recipe follow, unless they "
                          "are given; 0: nothing follows"});
  AddSection(options, "", config);
  AddModelOptions(options, config.model);
  AddSection(options, "data.", config.data);
  AddSection(options, "train.", config.train);
  AddSection(options, "optim.", config.optim);
  AddSection(options, "lora.", config.lora);
  AddSection(options, "dpo.", config.dpo);
  AddSection(options, "eval.", config.eval);
  AddSection(options, "checkpoint.", config.checkpoint);
  AddSection(options, "parallel.", config.parallel);
  AddSection(options, "dist.", config.dist);
  AddSection(options, "log.", config.log);
  options.AddRemoved("dist.packing", std::string("auto"),
                     "messages are no longer packed, which changes no bit: leave dist.packing out");
  options.MarkWritten(config.written);
  options.OnResolve([&config](Options& resolved) {
    CheckRun(resolved, config);
    config.written = resolved.Written();
  });
}

void SettleSteps(int64_t decay_start, int64_t steps, RunConfig* config) {
  config->optim.decay_start = decay_start;
  config->train.steps = steps;
  config->written.insert({"optim.decay_start", "train.steps"});
}

int64_t WarmupOf(const RunConfig& config) {
  constexpr int64_t kMost = 100;
  const int64_t steps = config.train.steps, decay = config.optim.decay_steps;
  if (config.optim.warmup >= 0 || steps == 0) return config.optim.warmup;
  return std::min(kMost, (decay == 0 ? steps : std::min(steps, decay)) / 10);
}

DType WeightDType(std::string_view precision) {
  return precision == "bf16" ? DType::kBF16 : precision == "fp16" ? DType::kF16 : DType::kF32;
}

int64_t MicroBatches(const TrainOptions& train, int64_t ranks) {
  LS_CHECK(ranks >= 1, "MicroBatches: ranks must be at least 1, got ", ranks);
  const int64_t global = train.global_batch_size, batch = train.batch_size;
  if (global == 0) return std::max<int64_t>(train.grad_accum, 1) * ranks;
  if (global < ranks) {
    throw InputError(StrCat("train.global_batch_size = ", global, " is less than one sequence ",
                            "for each of ", ranks, " ranks: use at most ", global,
                            " ranks, or train.global_batch_size = ", ranks));
  }
  const int64_t micro_batches = global / batch, least = batch * ranks;
  if (global % batch != 0 || micro_batches < ranks) {
    const int64_t lower = micro_batches * batch;
    const bool cut = global % batch != 0;
    // A smaller micro-batch, since a larger one takes more memory.
    int64_t fitting = std::min(batch, global / ranks);
    while (global % fitting != 0) --fitting;
    throw InputError(StrCat(
        "train.global_batch_size = ", global,
        cut ? StrCat(" is not a multiple of train.batch_size = ", batch)
            : StrCat(" makes ", micro_batches, " micro-batches of train.batch_size = ", batch,
                     " for ", ranks, " ranks, each of which needs one"),
        ": use train.global_batch_size = ", lower >= least ? StrCat(lower, " or ") : "",
        std::max(least, lower + (cut ? batch : 0)), ", or train.batch_size = ", fitting,
        cut ? ""
            : StrCat(", or at most ", micro_batches, micro_batches == 1 ? " rank" : " ranks")));
  }
  if (train.grad_accum != 0 && train.grad_accum * ranks != micro_batches)
    throw InputError(StrCat("train.grad_accum = ", train.grad_accum,
                            " contradicts train.global_batch_size = ", global, ", which makes ",
                            micro_batches, " micro-batches of train.batch_size = ", batch, " for ",
                            ranks, ranks == 1 ? " rank" : " ranks",
                            ": leave train.grad_accum out, or use train.global_batch_size = ",
                            least * train.grad_accum));
  return micro_batches;
}

namespace {
// The options of a copy of a configuration.
struct OptionsOf {
  explicit OptionsOf(const RunConfig& c) : config(c) { AddRunOptions(options, config); }

  RunConfig config;
  Options options{{.name = "train_gpt", .summary = ""}};
};
}  // namespace

void Validate(const RunConfig& config) { OptionsOf(config).options.Validate(); }

std::string ToToml(const RunConfig& config) {
  return OptionsOf(config).options.Dump(/*sources=*/false);
}

RunConfig RunConfigFromToml(std::string_view toml, const std::string& name) {
  OptionsOf run{RunConfig()};
  run.options.ParseToml(toml, name);
  return run.config;
}

std::vector<OptionDifference> Compare(const RunConfig& a, const RunConfig& b) {
  return Compare(OptionsOf(a).options, OptionsOf(b).options);
}

std::vector<OptionDifference> Difference(const RunConfig& a, const RunConfig& b) {
  return Difference(OptionsOf(a).options, OptionsOf(b).options);
}

}  // namespace lockstep::models
