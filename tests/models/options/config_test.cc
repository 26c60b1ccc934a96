// Every option of a run: its key, its field, and whether it may differ when a run continues.
#include "models/options/config.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(RunConfig, TheDefaultsAreValid) {
  Validate(RunConfig());
  const ParsedRun run(std::vector<std::string>{});
  EXPECT_THAT(run.options.warnings(), IsEmpty());
  EXPECT_THAT(Difference(run.config, RunConfig()), IsEmpty());
}

// All keys, so that none is lost or renamed unnoticed.
TEST(RunConfig, HelpMentionsEachKey) {
  const ParsedRun run(std::vector<std::string>{});
  const std::string help = run.options.Help(100);
  for (const std::string key : {"device",
                                "threads",
                                "seed",
                                "out_dir",
                                "init_from",
                                "lora.init_from",
                                "model.preset",
                                "model.vocab_size",
                                "model.block_size",
                                "model.n_layer",
                                "model.n_head",
                                "model.n_embd",
                                "model.dropout",
                                "model.bias",
                                "model.norm",
                                "model.activation",
                                "model.position",
                                "model.tie_embeddings",
                                "model.n_kv_head",
                                "model.head_dim",
                                "model.qkv_bias",
                                "model.qk_norm",
                                "model.value_embed",
                                "model.attn_scale",
                                "model.attn_softcap",
                                "model.window",
                                "model.window_pattern",
                                "model.norm_offset",
                                "model.norm_weight",
                                "model.norm_place",
                                "model.rope_reverse",
                                "model.rope_local_theta",
                                "model.rope_skip",
                                "model.embed_scale",
                                "model.embed_norm",
                                "model.embed_mix",
                                "model.logit_softcap",
                                "model.n_inner",
                                "model.n_expert",
                                "model.n_expert_used",
                                "model.n_expert_inner",
                                "model.n_shared_expert",
                                "model.shared_gate",
                                "model.n_dense",
                                "model.router",
                                "model.router_scale",
                                "model.balance_loss",
                                "model.z_loss",
                                "model.bias_rate",
                                "model.norm_eps",
                                "model.init_std",
                                "model.init_zero",
                                "model.rope_theta",
                                "model.rope_scaling",
                                "model.rope_factor",
                                "model.rope_low",
                                "model.rope_high",
                                "model.rope_original_length",
                                "data.path",
                                "data.mix",
                                "data.field",
                                "data.tokenizer",
                                "data.val_fraction",
                                "data.order",
                                "data.document_mask",
                                "data.format",
                                "data.chat_template",
                                "data.if_long",
                                "data.user_special_tokens",
                                "train.objective",
                                "dpo.loss",
                                "dpo.beta",
                                "dpo.label_smoothing",
                                "train.steps",
                                "train.epochs",
                                "train.tokens_per_parameter",
                                "train.batch_size",
                                "train.grad_accum",
                                "train.global_batch_size",
                                "train.precision",
                                "train.grad_dtype",
                                "train.loss_scale",
                                "train.loss_scale_every",
                                "train.loss_chunk",
                                "train.recompute",
                                "train.offload",
                                "train.cuda_graphs",
                                "train.log_every",
                                "train.eval_every",
                                "train.eval_batches",
                                "train.sample_every",
                                "train.sample_tokens",
                                "train.sample_prompt",
                                "optim.name",
                                "optim.schedule",
                                "optim.lr",
                                "optim.min_lr",
                                "optim.warmup",
                                "optim.decay_steps",
                                "optim.decay_fraction",
                                "optim.beta1",
                                "optim.beta2",
                                "optim.eps",
                                "optim.momentum",
                                "optim.nesterov",
                                "optim.weight_decay",
                                "optim.clip",
                                "optim.master_weights",
                                "optim.state_dtype",
                                "checkpoint.every",
                                "checkpoint.keep",
                                "checkpoint.keep_best",
                                "checkpoint.resume",
                                "checkpoint.save_initial",
                                "checkpoint.async",
                                "checkpoint.sharded",
                                "parallel.tp",
                                "virtual.tp",
                                "parallel.cp",
                                "virtual.cp",
                                "parallel.pp",
                                "parallel.schedule",
                                "parallel.ep",
                                "parallel.shard",
                                "parallel.shard_ranks",
                                "parallel.reshard_after_forward",
                                "dist.backend",
                                "dist.reduction",
                                "dist.compress",
                                "dist.bucket_mib",
                                "dist.first_bucket_mib",
                                "dist.check",
                                "dist.check_every",
                                "dist.timeout",
                                "log.trace",
                                "log.fingerprints",
                                "log.ops"}) {
    EXPECT_THAT(help, HasSubstr("  --" + key));
    run.options.source(key);
  }
}

TEST(RunConfig, OptionsReachTheirFields) {
  const RunConfig config = RunConfigFromToml(R"(
device = "cuda:1"
threads = 3
seed = 5
out_dir = "runs/a"
init_from = "gpt2"
[model]
vocab_size = 512
block_size = 32
n_layer = 2
n_head = 4
n_kv_head = 2
head_dim = 6
qk_norm = true
attn_scale = 0.3
attn_softcap = 50
window = 9
window_pattern = 2
norm_offset = 1
norm_place = "sandwich"
rope_local_theta = 40
rope_skip = 3
embed_scale = 4
logit_softcap = 30
n_embd = 16
n_inner = 20
dropout = 0.5
bias = true
norm = "rms_norm"
norm_eps = 1e-4
init_std = 0.5
activation = "swiglu"
position = "rope"
rope_theta = 500.0
rope_scaling = "llama3"
rope_factor = 3
rope_low = 2
rope_high = 5
rope_original_length = 77
tie_embeddings = false
[data]
path = "x.txt"
tokenizer = "byte"
val_fraction = 0.25
order = "sequential"
[train]
steps = 0
epochs = 1.5
batch_size = 3
grad_accum = 4
global_batch_size = 24
loss_chunk = 128
cuda_graphs = false
log_every = 1
eval_every = 2
eval_batches = 6
sample_every = 7
sample_tokens = 8
sample_prompt = "Once"
[optim]
name = "muon"
schedule = "wsd"
lr = 0.25
min_lr = 0.125
warmup = 9
decay_steps = 11
decay_fraction = 0.5
beta1 = 0.75
beta2 = 0.875
eps = 1e-6
momentum = 0.5
nesterov = false
weight_decay = 0
clip = 2
[checkpoint]
every = 12
keep = 13
resume = "none"
save_initial = true
async = false
sharded = false
[parallel]
tp = 2
shard = "full"
shard_ranks = 4
reshard_after_forward = false
[virtual]
tp = 8
[dist]
backend = "tcp"
reduction = "ordered"
bucket_mib = 3.5
first_bucket_mib = 0.25
check = "full"
check_every = 14
timeout = 15
)",
                                             "c.toml");
  EXPECT_EQ(config.device, "cuda:1");
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.seed, 5);
  EXPECT_EQ(config.out_dir, "runs/a");
  EXPECT_EQ(config.init_from, "gpt2");
  EXPECT_EQ(config.model.vocab_size, 512);
  EXPECT_EQ(config.model.block_size, 32);
  EXPECT_EQ(config.model.n_layer, 2);
  EXPECT_EQ(config.model.n_head, 4);
  EXPECT_EQ(config.model.n_kv_head, 2);
  EXPECT_EQ(config.model.head_dim, 6);
  EXPECT_EQ(config.model.qk_norm, "head");  // as earlier versions wrote it
  EXPECT_EQ(config.model.attn_scale, 0.3);
  EXPECT_EQ(config.model.attn_softcap, 50);
  EXPECT_EQ(config.model.window, 9);
  EXPECT_EQ(config.model.window_pattern, 2);
  EXPECT_EQ(config.model.norm_offset, 1);
  EXPECT_EQ(config.model.norm_place, "sandwich");
  EXPECT_EQ(config.model.rope_local_theta, 40);
  EXPECT_EQ(config.model.rope_skip, 3);
  EXPECT_EQ(config.model.embed_scale, 4);
  EXPECT_EQ(config.model.logit_softcap, 30);
  EXPECT_EQ(config.model.n_embd, 16);
  EXPECT_EQ(config.model.n_inner, 20);
  EXPECT_EQ(config.model.dropout, 0.5);
  EXPECT_EQ(config.model.norm, "rms_norm");
  EXPECT_EQ(config.model.norm_eps, 1e-4);
  EXPECT_EQ(config.model.init_std, 0.5);
  EXPECT_EQ(config.model.activation, "swiglu");
  EXPECT_EQ(config.model.position, "rope");
  EXPECT_EQ(config.model.rope_theta, 500);
  EXPECT_EQ(config.model.rope_scaling, "llama3");
  EXPECT_EQ(config.model.rope_factor, 3);
  EXPECT_EQ(config.model.rope_low, 2);
  EXPECT_EQ(config.model.rope_high, 5);
  EXPECT_EQ(config.model.rope_original_length, 77);
  EXPECT_TRUE(config.model.bias);
  EXPECT_FALSE(config.model.tie_embeddings);
  EXPECT_EQ(config.data.path, "x.txt");
  EXPECT_EQ(config.data.tokenizer, "byte");
  EXPECT_EQ(config.data.val_fraction, 0.25);
  EXPECT_EQ(config.data.order, "sequential");
  EXPECT_EQ(config.train.steps, 0);
  EXPECT_EQ(config.train.epochs, 1.5);
  EXPECT_EQ(config.train.batch_size, 3);
  EXPECT_EQ(config.train.grad_accum, 4);
  EXPECT_EQ(config.train.global_batch_size, 24);
  EXPECT_EQ(config.train.loss_chunk, 128);
  EXPECT_FALSE(config.train.cuda_graphs);
  EXPECT_EQ(config.train.log_every, 1);
  EXPECT_EQ(config.train.eval_every, 2);
  EXPECT_EQ(config.train.eval_batches, 6);
  EXPECT_EQ(config.train.sample_every, 7);
  EXPECT_EQ(config.train.sample_tokens, 8);
  EXPECT_EQ(config.train.sample_prompt, "Once");
  EXPECT_EQ(config.optim.name, "muon");
  EXPECT_EQ(config.optim.schedule, "wsd");
  EXPECT_EQ(config.optim.lr, 0.25);
  EXPECT_EQ(config.optim.min_lr, 0.125);
  EXPECT_EQ(config.optim.warmup, 9);
  EXPECT_EQ(config.optim.decay_steps, 11);
  EXPECT_EQ(config.optim.decay_fraction, 0.5);
  EXPECT_EQ(config.optim.beta1, 0.75);
  EXPECT_EQ(config.optim.beta2, 0.875);
  EXPECT_EQ(config.optim.eps, 1e-6);
  EXPECT_EQ(config.optim.momentum, 0.5);
  EXPECT_FALSE(config.optim.nesterov);
  EXPECT_EQ(config.optim.weight_decay, 0);
  EXPECT_EQ(config.optim.clip, 2);
  EXPECT_EQ(config.checkpoint.every, 12);
  EXPECT_EQ(config.checkpoint.keep, 13);
  EXPECT_EQ(config.checkpoint.resume, "none");
  EXPECT_TRUE(config.checkpoint.save_initial);
  EXPECT_FALSE(config.checkpoint.async);
  EXPECT_FALSE(config.checkpoint.sharded);
  EXPECT_EQ(config.parallel.tp, 2);
  EXPECT_EQ(config.parallel.virtual_tp, 8);
  EXPECT_EQ(config.parallel.shard, "full");
  EXPECT_EQ(config.parallel.shard_ranks, 4);
  EXPECT_FALSE(config.parallel.reshard_after_forward);
  EXPECT_EQ(config.dist.backend, "tcp");
  EXPECT_EQ(config.dist.reduction, "ordered");
  EXPECT_EQ(config.dist.bucket_mib, 3.5);
  EXPECT_EQ(config.dist.first_bucket_mib, 0.25);
  EXPECT_EQ(config.dist.check, "full");
  EXPECT_EQ(config.dist.check_every, 14);
  EXPECT_EQ(config.dist.timeout, 15);
  // A run folder preserves all of it.
  EXPECT_THAT(Difference(config, RunConfigFromToml(ToToml(config), "again")), IsEmpty());
  // All but dist.compress, which the ordered reduction rules out, and parallel.ep and those of a
  // pipeline and of context parallelism, which parallel.shard rules out.
  EXPECT_EQ(Difference(config, RunConfig()).size(), 86u);
}

TEST(RunConfig, DifferencesSayWhetherTheyAreOperational) {
  RunConfig a, b;
  b.threads = 2;
  b.optim.lr = 0.5;
  const std::vector<OptionDifference> differences = Difference(a, b);
  ASSERT_THAT(differences, SizeIs(2));
  EXPECT_EQ(differences[0].key, "threads");
  EXPECT_TRUE(differences[0].operational);
  EXPECT_EQ(differences[1].key, "optim.lr");
  EXPECT_FALSE(differences[1].operational);
  EXPECT_EQ(ToString(differences), "  threads: 0 -> 2\n  optim.lr: 0.002 -> 0.5\n");
}

}  // namespace
}  // namespace lockstep::models
