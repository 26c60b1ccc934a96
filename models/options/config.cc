#include "models/options/config.h"

#include <algorithm>

#include "core/error.h"
#include "core/io/file.h"
#include "models/options/config_checks.h"
#include "models/options/option_model.h"
#include "models/options/option_offload.h"
#include "models/options/option_recompute.h"
#include "models/options/option_step_range.h"

namespace lockstep::models {
namespace {

// Products of these, and of kMaxTokens in option_model.cc, stay within 64 bits.
constexpr double kMaxBatch = 1e7;
constexpr double kMaxSteps = 1e15;

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

void AddGeneralOptions(Options& options, RunConfig& config) {
  options.Add("device", &config.device,
              {.check = CheckDevice,
               .operational = true,
               .doc = "where to compute: auto (a GPU, else the CPU), cpu, cuda[:i], sim[:i] (a "
                      "simulated GPU)"});
  options.Add("threads", &config.threads,
              {.min = 0,
               .max = 4096,
               .aliases = {"num_threads", "n_threads"},
               .operational = true,
               .doc = "CPU threads; 0: all"});
  options.Add("seed", &config.seed, {.min = 0, .doc = "seed of all random numbers"});
  options.Add("out_dir", &config.out_dir,
              {.check = CheckNotEmpty,
               .aliases = {"output_dir", "log_dir"},
               .operational = true,
               .doc = "the run's folder: metrics, report, checkpoints"});
  options.Add(
      "init_from", &config.init_from,
      {.doc = "a checkpoint, a run folder (its best checkpoint, else the latest), or a Hugging "
              "Face folder to start from; empty: random weights"});
}

void AddDataOptions(Options& options, DataOptions& data) {
  options.Add(
      "data.path", &data.path,
      {.aliases = {"dataset", "data", "input", "file"},
       .doc = "text or JSONL, also .gz or .zst; .bin token files (a pattern such as "
              "'fineweb_*.bin'); a folder of either, or one made by prepare; empty: the embedded "
              "corpus"});
  options.Add("data.mix", &data.mix,
              {.doc = "instead of data.path: several paths, with the proportions in which samples "
                      "are taken, whatever they add up to: \"web.bin:0.7,code.bin:0.3\""});
  options.Add("data.field", &data.field, {.doc = "JSONL: the field with the text"});
  options.Add("data.tokenizer", &data.tokenizer,
              {.check = CheckTokenizer,
               .doc = "char, byte, gpt2, or a tokenizer file or folder; auto: the matching one for "
                      "token files, and for text in a data.mix with them; else char"});
  options.Add("data.val_fraction", &data.val_fraction,
              {.min = 0,
               .below = 1,
               .doc = "fraction of the data held out for validation, unless there are validation "
                      "files: the end of a text, or conversations and pairs chosen at random"});
  options.Add("data.order", &data.order,
              {.choices = {"shuffled", "random", "sequential"},
               .doc = "windows of the data: each once per epoch in a new random order, at random "
                      "offsets, or in the data's order"});
  options.Add("data.document_mask", &data.document_mask,
              {.doc = "keep the documents of a window apart: attention does not cross from one to "
                      "the other, and positions start anew in each; for token files with a token "
                      "between documents, or an index of them"});
  options.Add(
      "data.format", &data.format,
      {.choices = {"auto", "text", "chat"},
       .doc = "what JSONL holds: text in data.field, or conversations (messages of OpenAI's "
              "or ShareGPT's, instruction and output, prompt and completion), of which "
              "only the answers are learnt; auto: told by its first line"});
  options.Add("data.chat_template", &data.chat_template,
              {.doc = "conversations: a chat_template.jinja, or a folder with one; empty: that of "
                      "init_from or of the tokenizer's folder"});
  options.Add("data.if_long", &data.if_long,
              {.choices = {"drop", "cut", "error"},
               .doc = "what to do with conversations of more tokens than a row: leave them out, "
                      "keep their beginnings, or stop"});
  options.Add("data.user_special_tokens", &data.user_special_tokens,
              {.doc = "conversations: special tokens in users' text, such as <|im_end|>, become "
                      "these tokens, as in transformers; false: they are plain text"});
}

void AddTrainOptions(Options& options, TrainOptions& train) {
  options.Add("train.objective", &train.objective,
              {.choices = {"lm", "dpo"},
               .doc = "lm: predict the next token; dpo: prefer the chosen answers of pairs "
                      "(direct preference optimisation), for adapters (lora.rank); data.path is "
                      "then JSONL with prompt, chosen and rejected"});
  options.Add("train.steps", &train.steps,
              {.min = 0,
               .max = kMaxSteps,
               .aliases = {"max_iters", "max_steps", "num_steps", "iterations"},
               .doc = "updates to make; 0: set by train.epochs"});
  options.Add("train.epochs", &train.epochs,
              {.min = 0,
               .max = 1e9,
               .aliases = {"num_epochs"},
               .doc = "passes over the data, instead of train.steps; 0: train.steps counts"});
  options.Add("train.batch_size", &train.batch_size,
              {.min = 1,
               .max = kMaxBatch,
               .aliases = {"micro_batch_size", "batch"},
               .doc = "sequences per rank and micro-step"});
  options.Add("train.grad_accum", &train.grad_accum,
              {.min = 0,
               .max = kMaxBatch,
               .aliases = {"gradient_accumulation_steps", "accum"},
               .doc = "micro-steps per update; 0: set by global_batch_size, else 1"});
  options.Add("train.global_batch_size", &train.global_batch_size,
              {.min = 0,
               .max = kMaxBatch,
               .aliases = {"total_batch_size"},
               .doc = "sequences per update, at any number of ranks; 0: batch_size x grad_accum x "
                      "ranks"});
  options.Add("train.precision", &train.precision,
              {.choices = {"fp32", "tf32", "bf16", "fp16"},
               .aliases = {"dtype"},
               .doc = "fp32; tf32 (fp32, but a GPU rounds the inputs of matrix products to 10 bits "
                      "of mantissa); bf16 or fp16 (weights and activations; master weights, "
                      "gradients, sums and statistics stay fp32), fp16 with a dynamic loss scale"});
  options.Add("train.grad_dtype", &train.grad_dtype,
              {.choices = {"fp32", "bf16"},
               .doc = "dtype in which gradients are kept and added up over micro-batches; bf16 is "
                      "for train.precision=bf16 in a single process, and rounds each sum, so a "
                      "step may have at most 8 micro-batches"});
  options.Add("train.numerics", &train.numerics,
              {.choices = {"units", "portable"},
               .doc = "bf16 on CPUs: units multiplies by the CPU's own, where it has some, with "
                      "bits that depend on them; portable multiplies in f32, with the same bits "
                      "on every CPU, and is slower"});
  options.Add("train.loss_scale", &train.loss_scale,
              {.min = 1,
               .max = 0x1p60,
               .aliases = {"init_scale"},
               .doc = "fp16: initial factor of the gradients, a power of two; halved whenever one "
                      "is infinite, and that update is skipped"});
  options.Add("train.loss_scale_every", &train.loss_scale_every,
              {.min = 1,
               .max = 1e9,
               .aliases = {"growth_interval"},
               .doc = "fp16: updates in a row without an infinite gradient, after which the loss "
                      "scale is doubled"});
  options.Add(
      "train.loss_chunk", &train.loss_chunk,
      {.min = -1,
       .aliases = {"num_output_chunks", "loss_chunk_size"},
       .doc = "tokens whose logits are in memory at once, if a micro-batch has more; 0: all; -1: "
              "4096 to 16384, by vocabulary, width and micro-batch; the run's config.toml says how "
              "many"});
  options.Add(
      "train.recompute", &train.recompute,
      {.check = Check<ParseRecompute>,
       .aliases = {"gradient_checkpointing", "activation_checkpointing", "checkpointing", "remat"},
       .operational = true,
       .doc = StrCat("what backward computes again instead of keeping it in memory, of each layer: "
                     "none, block, attention, mlp, or the results of operations (",
                     RecomputableOps(),
                     "), as in gelu,layer_norm; auto: the blocks of as few layers as make the run "
                     "fit. The bits stay the same")});
  options.Add("train.offload", &train.offload,
              {.check = Check<ParseOffload>,
               .aliases = {"cpu_offload", "activation_offload"},
               .operational = true,
               .doc = "what is kept in the host's memory until a GPU needs it: none, or a list of "
                      "activations, weights (of each, all but two layers' leave the GPU) and "
                      "optimizer, as in optimizer,weights. The bits stay the same"});
  options.Add("train.cuda_graphs", &train.cuda_graphs,
              {.operational = true,
               .doc = "on a single GPU with dist.reduction=fast, launch a step as a whole instead "
                      "of kernel by kernel: the same bits in less time"});
  options.Add("train.max_skips", &train.max_skips,
              {.min = 0,
               .doc = "consecutive updates that may be skipped, with a warning, because a gradient "
                      "is not finite; one more ends the run"});
  options.Add("train.log_every", &train.log_every,
              {.min = 1,
               .aliases = {"log_interval"},
               .operational = true,
               .doc = "steps between lines on the terminal (metrics.jsonl has every step)"});
  options.Add("train.eval_every", &train.eval_every,
              {.min = 0,
               .aliases = {"eval_interval"},
               .operational = true,
               .doc = "steps between evaluations; 0: only at the end"});
  options.Add("train.eval_batches", &train.eval_batches,
              {.min = 0,
               .aliases = {"eval_iters", "eval_steps"},
               .operational = true,
               .doc = "batches of an evaluation; 0: all of the validation data"});
  options.Add("train.sample_every", &train.sample_every,
              {.min = 0,
               .operational = true,
               .doc = "steps between samples of generated text; 0: only at the end"});
  options.Add("train.sample_tokens", &train.sample_tokens,
              {.min = 0, .max = 1e6, .operational = true, .doc = "length of a sample; 0: none"});
  options.Add("train.sample_prompt", &train.sample_prompt,
              {.check = CheckNotEmpty,
               .operational = true,
               .doc = "text that samples continue; with conversations, what the user says (blank: "
                      "what the user says in the first held-out one)"});
}

void AddOptimOptions(Options& options, OptimOptions& optim) {
  options.Add("optim.name", &optim.name,
              {.choices = {"adamw", "sgd", "lion", "muon"},
               .aliases = {"optimizer"},
               .doc = "the optimizer; lion needs a learning rate 3 to 10 times smaller than adamw; "
                      "muon updates the matrices of the blocks, adamw the rest at the same rate"});
  options.Add("optim.schedule", &optim.schedule,
              {.choices = {"cosine", "linear", "constant", "wsd"},
               .aliases = {"lr_scheduler", "lr_decay"},
               .doc = "learning rate after the warm-up (wsd: constant, then a linear decay)"});
  options.Add("optim.lr", &optim.lr,
              {.above = 0,
               .max = 1000,
               .aliases = {"learning_rate", "max_lr"},
               .doc = "peak learning rate"});
  options.Add("optim.min_lr", &optim.min_lr,
              {.min = 0, .max = 1000, .doc = "learning rate at the end of the decay"});
  options.Add("optim.warmup", &optim.warmup,
              {.min = -1,
               .max = kMaxSteps,
               .aliases = {"warmup_iters", "warmup_steps"},
               .doc = "steps over which the learning rate rises to its peak; -1: 100, or a tenth "
                      "of the run if that is less"});
  options.Add("optim.decay_steps", &optim.decay_steps,
              {.min = 0,
               .max = kMaxSteps,
               .aliases = {"lr_decay_iters"},
               .doc = "step at which the decay ends; 0: the last step of the run"});
  options.Add("optim.decay_fraction", &optim.decay_fraction,
              {.above = 0, .max = 1, .doc = "wsd: fraction of decay_steps spent decaying"});
  options.Add("optim.beta1", &optim.beta1,
              {.min = 0, .below = 1, .doc = "adamw, lion: decay of the mean of gradients"});
  options.Add("optim.beta2", &optim.beta2,
              {.min = 0,
               .below = 1,
               .doc = "adamw: decay of the mean of squared gradients; lion: of the momentum"});
  options.Add(
      "optim.eps", &optim.eps,
      {.min = 1e-30, .max = 1, .aliases = {"epsilon"}, .doc = "adamw: added to the denominator"});
  options.Add("optim.momentum", &optim.momentum,
              {.min = 0, .below = 1, .doc = "sgd, muon: decay of the sum or mean of gradients"});
  options.Add("optim.nesterov", &optim.nesterov, {.doc = "sgd, muon: Nesterov momentum"});
  options.Add(
      "optim.weight_decay", &optim.weight_decay,
      {.min = 0,
       .max = 1000,
       .aliases = {"wd"},
       .doc =
           "decay of parameters with two or more dimensions; decoupled from the gradient, except "
           "with sgd"});
  options.Add("optim.clip", &optim.clip,
              {.min = 0,
               .max = 1e9,
               .aliases = {"grad_clip", "max_grad_norm", "gradient_clipping"},
               .doc = "norm to which larger gradients are scaled; 0: no clipping"});
  options.Add("optim.master_weights", &optim.master_weights,
              {.doc = "with 16-bit weights, keep their fp32 originals; false needs bf16, whose "
                      "updates are then rounded stochastically"});
  options.Add("optim.state_dtype", &optim.state_dtype,
              {.choices = {"fp32", "bf16"},
               .doc = "dtype of the optimizer's moments; bf16 takes half the memory, and is "
                      "rounded stochastically"});
}

void AddCheckpointOptions(Options& options, CheckpointOptions& checkpoint) {
  options.Add("checkpoint.every", &checkpoint.every,
              {.min = 0,
               .aliases = {"save_every", "save_steps", "checkpoint_every"},
               .operational = true,
               .doc = "steps between checkpoints; 0: only at the end"});
  options.Add("checkpoint.keep", &checkpoint.keep,
              {.min = 0, .operational = true, .doc = "newest checkpoints to keep; 0: all"});
  options.Add("checkpoint.keep_best", &checkpoint.keep_best,
              {.aliases = {"save_best", "load_best_model_at_end"},
               .operational = true,
               .doc = "among the checkpoints saved at an evaluation, also keep the one with the "
                      "lowest validation loss, as out_dir/best"});
  options.Add("checkpoint.resume", &checkpoint.resume,
              {.check = CheckNotEmpty,
               .operational = true,
               .doc = "auto (continue an unfinished run in out_dir), none, or the path of a "
                      "checkpoint"});
  options.Add("checkpoint.save_initial", &checkpoint.save_initial,
              {.operational = true, .doc = "also save the model before the first step"});
  options.Add(
      "checkpoint.async", &checkpoint.async,
      {.aliases = {"async_save", "async_checkpoint"},
       .operational = true,
       .doc = "copy what is saved to the host's memory, and write it while training "
              "continues; false: training waits, and needs no memory for the copy, but for what "
              "the first rank collects with checkpoint.sharded=false"});
  options.Add(
      "checkpoint.sharded", &checkpoint.sharded,
      {.aliases = {"save_sharded", "sharded_checkpoint"},
       .operational = true,
       .doc = "where parallel.shard, pp, tp or ep divide the model among ranks, each rank writes "
              "its part, and out_dir/model is made for Hugging Face at the end; false: the first "
              "rank collects all, and every checkpoint is a Hugging Face folder"});
}

}  // namespace

void AddRunOptions(Options& options, RunConfig& config) {
  AddGeneralOptions(options, config);
  AddModelOptions(options, config.model);
  AddDataOptions(options, config.data);
  AddTrainOptions(options, config.train);
  AddOptimOptions(options, config.optim);
  AddLoraOptions(options, config.lora);
  AddDpoOptions(options, config.dpo);
  AddCheckpointOptions(options, config.checkpoint);
  AddParallelOptions(options, config.parallel);
  AddDistOptions(options, config.dist);
  options.Add("log.trace", &config.log.trace,
              {.check = Check<ParseStepRange>,
               .operational = true,
               .doc = "first:last, steps to trace into out_dir/trace-first-last.json, for "
                      "chrome://tracing or ui.perfetto.dev; empty: none"});
  options.MarkWritten(config.written);
  options.OnResolve([&config](Options& resolved) {
    CheckRun(resolved, config);
    config.written = resolved.Written();
  });
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
