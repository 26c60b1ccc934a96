// The configuration of a training run, and its options. README.md explains how to add one.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "models/options/option_dist.h"
#include "models/options/option_dpo.h"
#include "models/options/option_lora.h"
#include "models/options/option_parallel.h"
#include "models/options/options.h"

namespace lockstep::models {

// The defaults make a newcomer's first run: a small character-level GPT on the embedded corpus, a
// minute or two on two cores. config.cc says what each field means, for --help.
struct ModelOptions {
  std::string preset;
  int64_t vocab_size = 0;  // 0: the tokenizer's
  int64_t block_size = 64;
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_embd = 128;
  double dropout = 0;
  bool bias = false;
  std::string norm = "layer_norm";
  std::string activation = "gelu";
  std::string position = "learned";
  bool tie_embeddings = true;
  int64_t n_kv_head = 0;  // 0: n_head
  int64_t head_dim = 0;   // 0: n_embd / n_head
  bool qkv_bias = false;
  std::string qk_norm = "none";
  double attn_scale = 0;  // 0: head_dim^-1/2
  double attn_softcap = 0;
  int64_t window = 0;
  int64_t window_pattern = 0;
  int64_t n_inner = 0;  // 0: DefaultInner of gpt_config.h
  double norm_eps = 1e-5;
  int64_t norm_offset = 0;
  std::string norm_place = "pre";
  double rope_theta = 10000;
  std::string rope_scaling = "none";
  double rope_factor = 1;
  double rope_low = 1, rope_high = 4;
  int64_t rope_original_length = 8192;
  double rope_local_theta = 0;  // 0: rope_theta, scaled as in other layers
  int64_t rope_skip = 0;
  double embed_scale = 1;
  double logit_softcap = 0;
  double init_std = 0;   // 0: 1 / sqrt(n_embd)
  int64_t n_expert = 0;  // 0: no experts, and what follows does nothing
  int64_t n_expert_used = 2;
  int64_t n_expert_inner = 0;  // 0: n_inner
  int64_t n_shared_expert = 0;
  bool shared_gate = false;
  int64_t n_dense = 0;
  std::string router = "softmax";
  double router_scale = 1;
  double balance_loss = 0.01;
  double z_loss = 0;
  double bias_rate = 0.001;
};

struct DataOptions {
  std::string path;  // "": the embedded corpus, or mix
  std::string mix;   // "web.bin:0.7,code.bin:0.3"
  std::string field = "text";
  std::string tokenizer = "auto";
  double val_fraction = 0.1;
  std::string order = "shuffled";
  bool document_mask = false;
  std::string format = "auto";
  std::string chat_template;  // "": that of init_from or of the tokenizer
  std::string if_long = "drop";
  bool user_special_tokens = false;
};

struct TrainOptions {
  std::string objective = "lm";
  int64_t steps = 1000;  // 0: follows from epochs. Exactly one of the two is above 0.
  double epochs = 0;
  int64_t batch_size = 16;
  int64_t grad_accum = 0;         // 0: follows from global_batch_size, else 1. See MicroBatches.
  int64_t global_batch_size = 0;  // 0: batch_size * grad_accum * ranks
  std::string precision = "fp32";
  std::string grad_dtype = "fp32";
  std::string numerics = "units";
  double loss_scale = 65536;  // fp16: at first
  int64_t loss_scale_every = 2000;
  int64_t loss_chunk = -1;  // -1: ops::LossChunk; 0: no limit
  std::string recompute = "none";
  std::string offload = "none";
  bool cuda_graphs = true;
  int64_t max_skips = 0;
  int64_t log_every = 10;
  int64_t eval_every = 250;  // 0: only at the end
  int64_t eval_batches = 0;  // 0: all
  int64_t sample_every = 0;  // 0: only at the end
  int64_t sample_tokens = 300;
  std::string sample_prompt = "\n";
};

struct OptimOptions {
  std::string name = "adamw";
  std::string schedule = "cosine";
  double lr = 2e-3;
  double min_lr = 0;
  int64_t warmup = -1;      // -1: 100, or a tenth of the run if that is less
  int64_t decay_steps = 0;  // 0: to the end of the run
  double decay_fraction = 0.2;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double eps = 1e-8;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;
  double clip = 1;  // 0: off
  bool master_weights = true;
  std::string state_dtype = "fp32";
};

struct CheckpointOptions {
  int64_t every = 250;  // 0: only at the end
  int64_t keep = 2;     // 0: all
  bool keep_best = true;
  std::string resume = "auto";
  bool save_initial = false;
  bool async = true;
  bool sharded = true;
};

struct LogOptions {
  std::string trace;  // "first:last"; "": none
};

struct RunConfig {
  std::string device = "auto";
  int64_t threads = 0;  // 0: all
  int64_t seed = 1337;
  std::string out_dir = "out";
  std::string init_from;
  ModelOptions model;
  DataOptions data;
  TrainOptions train;
  OptimOptions optim;
  LoraOptions lora;
  DpoRunOptions dpo;
  CheckpointOptions checkpoint;
  ParallelOptions parallel;
  DistOptions dist;
  LogOptions log;
  // The keys of the options that the user wrote. What else a program sets counts as written when
  // the configuration is read back from its file.
  std::set<std::string> written;
};

// Adds all options of a run, its presets and the checks that span options. `config` must outlive
// `options`; its values now are the defaults.
void AddRunOptions(Options& options, RunConfig& config);

// For configurations that a program fills in itself: the same checks as for a user's options.
// Throws InputError.
void Validate(const RunConfig& config);

// The dtype of weights and activations in train.precision, which is one of its choices.
DType WeightDType(std::string_view precision);

// Micro-batches per update, of all `ranks` data-parallel ranks together; their shares may be
// unequal. Throws InputError, with the nearest values that work, if global_batch_size is not a
// multiple of batch_size, makes fewer than one for each rank, or contradicts grad_accum.
int64_t MicroBatches(const TrainOptions& train, int64_t ranks);

// The TOML text of a run folder's config.toml, and back. Throws InputError; errors call it `name`.
std::string ToToml(const RunConfig& config);
RunConfig RunConfigFromToml(std::string_view toml, const std::string& name);

// Every option of two runs, and those in which they differ.
std::vector<OptionDifference> Compare(const RunConfig& a, const RunConfig& b);
std::vector<OptionDifference> Difference(const RunConfig& a, const RunConfig& b);

}  // namespace lockstep::models
