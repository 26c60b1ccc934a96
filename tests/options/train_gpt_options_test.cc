// Each option of train_gpt does what --help says: a run with it differs as it should from one
// without it. Here are those that change the numbers of a run, and the list of all.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "core/io/file.h"
#include "tests/options/option_runs.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class TrainGptOptions : public OptionRuns {};

// ---- Options that change the numbers ----

struct Numeric {
  const char* key;
  std::string value;    // differs from the default
  Arguments with = {};  // what the option needs to act
};

const Arguments kRope = {"--model.position=rope"};
const Arguments kLinear = {"--model.position=rope", "--model.rope_scaling=linear",
                           "--model.rope_factor=4"};
const Arguments kLlama3 = {"--model.position=rope", "--model.rope_scaling=llama3",
                           "--model.rope_original_length=8", "--model.rope_factor=4"};
const Arguments kWindow = {"--model.position=rope", "--model.n_layer=2", "--model.window=5"};
const Arguments kPattern = {"--model.position=rope", "--model.n_layer=2", "--model.window=5",
                            "--model.window_pattern=2"};
const Arguments kExperts = {"--model.n_expert=4"};
const Arguments kSharedExpert = {"--model.n_expert=4", "--model.n_shared_expert=1"};
const Arguments kMuon = {"--optim.name=muon"};
const Arguments kDecay = {"--optim.weight_decay=10"};
const Arguments kSigmoid = {"--model.n_expert=4", "--model.router=sigmoid"};

const std::vector<Numeric>& NumericOptions() {
  static const std::vector<Numeric> options = {
      {"seed", "7"},
      {"depth", "4"},
      {"model.preset", "llama-tiny"},
      {"model.vocab_size", "200"},
      {"model.block_size", "12"},
      {"model.n_layer", "2"},
      {"model.n_head", "4"},
      {"model.n_embd", "24"},
      {"model.dropout", "0.2"},
      {"model.bias", "true"},
      {"model.norm", "rms_norm"},
      {"model.activation", "relu"},
      {"model.position", "rope"},
      {"model.tie_embeddings", "false"},
      {"model.n_kv_head", "1"},
      {"model.head_dim", "12"},
      {"model.qkv_bias", "true"},
      {"model.qk_norm", "full"},
      {"model.value_embed", "true"},
      {"model.attn_scale", "0.5"},
      {"model.attn_softcap", "0.5"},
      {"model.window", "3"},
      {"model.window_pattern", "2", kWindow},
      {"model.norm_offset", "1"},
      {"model.norm_weight", "false", {"--model.norm=rms_norm"}},
      {"model.norm_place", "sandwich"},
      {"model.rope_reverse", "true", kRope},
      {"model.rope_local_theta", "100", kPattern},
      {"model.rope_skip", "1", kRope},
      {"model.embed_scale", "4", kRope},
      {"model.embed_norm", "true"},
      {"model.embed_mix", "true"},
      {"model.logit_softcap", "2"},
      {"model.n_inner", "32"},
      {"model.norm_eps", "0.1"},
      {"model.init_std", "0.05"},
      {"model.init_zero", "true"},
      {"model.rope_theta", "100", kRope},
      {"model.rope_scaling", "llama3", kLinear},
      {"model.rope_factor", "2", kLinear},
      {"model.rope_low", "0.5", kLlama3},
      {"model.rope_high", "8", kLlama3},
      {"model.rope_original_length", "16", kLlama3},
      {"model.n_expert", "8", kExperts},
      {"model.n_expert_used", "1", kExperts},
      {"model.n_expert_inner", "24", kExperts},
      {"model.n_shared_expert", "1", kExperts},
      {"model.shared_gate", "true", kSharedExpert},
      {"model.n_dense", "1", {"--model.n_expert=4", "--model.n_layer=2"}},
      {"model.router", "sigmoid", kExperts},
      {"model.router_scale", "2", kSigmoid},
      {"model.balance_loss", "1", kExperts},
      {"model.z_loss", "1", kExperts},
      {"model.bias_rate", "0.5", kSigmoid},
      {"data.tokenizer", "byte"},
      {"data.val_fraction", "0.3"},
      {"data.order", "sequential"},
      {"data.document_mask",
       "true",
       {"--data.path=" + testing::TempDir() + "options/documents.bin"}},
      {"train.batch_size", "3"},
      {"train.grad_accum", "2"},
      {"train.global_batch_size", "8"},
      {"train.precision", "bf16"},
      {"train.grad_dtype", "bf16", {"--train.precision=bf16"}},
      {"train.eval_batches", "2"},
      {"optim.name", "lion"},
      {"optim.schedule", "constant"},
      {"optim.lr", "0.01"},
      {"optim.min_lr", "1e-4"},
      {"optim.matrix_lr", "0.01"},
      {"optim.embedding_lr", "0.01"},
      {"optim.unembedding_lr", "0.01", {"--model.tie_embeddings=false"}},
      {"optim.scalar_lr", "0.01"},
      {"optim.warmup", "3"},
      {"optim.decay_steps", "4"},
      {"optim.decay_fraction", "0.5", {"--optim.schedule=wsd"}},
      {"optim.decay_start", "3", {"--optim.schedule=wsd"}},
      {"optim.beta1", "0.5"},
      {"optim.beta2", "0.5"},
      {"optim.eps", "0.01"},
      {"optim.momentum", "0.5", {"--optim.name=sgd"}},
      {"optim.nesterov", "false", {"--optim.name=sgd", "--optim.momentum=0.8"}},
      {"optim.muon_scale", "original", kMuon},
      {"optim.muon_dtype", "bf16", kMuon},
      {"optim.muon_split", "true", kMuon},
      {"optim.weight_decay", "10"},
      {"optim.weight_decay_schedule", "linear", kDecay},
      {"optim.cautious_weight_decay", "true", kDecay},
      {"optim.decay_embeddings", "false", kDecay},
      {"optim.clip", "0.01"},
      {"train.z_loss", "0.1"},
      {"optim.master_weights", "false", {"--train.precision=bf16"}},
      {"optim.state_dtype", "bf16"},
  };
  return options;
}

TEST_F(TrainGptOptions, NumbersChange) {
  // The comparison below sees only these numbers.
  EXPECT_EQ(Train({}).Numbers(), Train({"--train.log_every=1"}).Numbers());
  EXPECT_THAT(Train({}).Numbers(), ContainsRegex("^([0-9.]+ ){15}$"));  // 6 steps, 3 validations
  for (const Numeric& option : NumericOptions()) {
    Arguments without = option.with, with = option.with;
    const std::string argument = std::string("--") + option.key + "=";
    std::erase_if(with, [&](const std::string& a) { return a.starts_with(argument); });
    with.push_back(argument + option.value);
    EXPECT_NE(Train(without).Numbers(), Train(with).Numbers()) << argument << option.value;
  }
}

TEST_F(TrainGptOptions, DocumentMaskNeedsDocuments) {
  const Result run = RunProgram({"models/train_gpt", "--data.document_mask=true", "--dry_run"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("the char tokenizer has no token for their ends"));
}

// What the option asks for is not what the run would do.
TEST_F(TrainGptOptions, ValFractionIsRefusedBesideFilesForValidation) {
  const std::string folder = Path("split"), whole = Path("documents.bin");
  MakeDirectories(folder);
  for (const char* name : {"/train.bin", "/val.bin"}) {
    WriteFileAtomically(folder + name, ReadFile(whole));
  }
  const auto run = [](const std::string& data, const Arguments& more) {
    Arguments all = {"models/train_gpt", "--dry_run", data, "--model.block_size=16"};
    all.insert(all.end(), more.begin(), more.end());
    return RunProgram(all);
  };
  const std::string half = "--data.val_fraction=0.5";
  for (const std::string& data : {"--data.path=" + folder, "--data.path=" + folder + "/*.bin",
                                  "--data.mix=" + folder + ":1"}) {
    const Result refused = run(data, {half});
    EXPECT_EQ(refused.exit_code, 2) << refused;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("data.val_fraction = 0.5 (command line)"),
                                   HasSubstr(folder), HasSubstr("has files for validation")));
    EXPECT_THAT(run(data, {}).out, HasSubstr("400 training and 400 validation tokens"));
  }
  EXPECT_THAT(run("--data.path=" + folder + "/*train*.bin", {half}).out,
              HasSubstr("200 training and 200 validation tokens"));
  // It still has an effect on a source of the mixture.
  EXPECT_THAT(run("--data.mix=" + folder + ":1," + whole + ":1", {half}).out,
              HasSubstr("600 training and 600 validation tokens"));
}

TEST_F(TrainGptOptions, DataFieldIsRefusedWithoutRows) {
  const std::string text = Path("other.txt");
  WriteFileAtomically(Path("rows.jsonl"), "{\"body\": \"" + std::string(400, 'a') + "\"}\n");
  const auto run = [](const Arguments& data) {
    Arguments all = {"models/train_gpt", "--dry_run", "--model.block_size=16", "--data.field=body"};
    all.insert(all.end(), data.begin(), data.end());
    return RunProgram(all);
  };
  for (const Arguments& data :
       std::vector<Arguments>{{},
                              {"--data.path=" + text},
                              {"--data.path=" + Path("documents.bin")},
                              {"--data.mix=" + text + ":1", "--data.tokenizer=byte"}}) {
    const Result refused = run(data);
    EXPECT_EQ(refused.exit_code, 2) << refused;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("data.field = \"body\" (command line) does nothing"),
                                   HasSubstr("leave data.field out")));
  }
  EXPECT_EQ(run({"--data.path=" + Path("rows.jsonl")}).exit_code, 0);
  const std::string both = "--data.mix=" + text + ":1," + Path("rows.jsonl") + ":1";
  EXPECT_EQ(run({both, "--data.tokenizer=byte"}).exit_code, 0);
}

// ---- Options that change something else: a test each, in train_gpt_run_options_test or as noted

const std::set<std::string> kOthers = {
    "device", "threads", "out_dir", "init_from", "data.path", "data.mix", "data.field",
    "train.steps", "train.epochs", "train.tokens_per_parameter", "train.cuda_graphs",
    "train.loss_chunk", "train.recompute", "train.offload", "train.loss_scale",
    "train.loss_scale_every", "train.max_skips", "train.spike", "train.log_every",
    "train.eval_every", "train.sample_every", "train.sample_tokens", "train.sample_prompt",
    "checkpoint.every", "checkpoint.keep", "checkpoint.keep_best", "checkpoint.resume",
    "checkpoint.save_initial", "log.trace",
    // Tested in tests/blame.
    "log.fingerprints", "log.ops",
    // Tested on several ranks in train_gpt_ranks_test and train_gpt_ranks_operation_test; what
    // dist.check and check_every find, in tests/dist and trainer_ranks_test.
    "checkpoint.async", "checkpoint.sharded", "dist.backend", "dist.bucket_mib", "dist.check",
    "dist.check_every", "dist.compress", "dist.elastic", "dist.first_bucket_mib", "dist.heartbeat",
    "dist.reduction", "dist.timeout", "parallel.reshard_after_forward", "parallel.shard",
    "parallel.shard_ranks", "parallel.tp", "virtual.tp", "parallel.cp", "virtual.cp", "parallel.ep",
    // In train_gpt_averages_test.
    "data.val_path", "optim.ema",
    // In train_gpt_lora_test, and in tests/models/peft/adapter_programs_test.
    "lora.rank", "lora.alpha", "lora.dropout", "lora.targets", "lora.rank_stabilized",
    "lora.init_from", "lora.base", "lora.modules_to_save",
    // In tests/models: train_gpt_chat_test; in tests/data: conversation_encoder_test.
    "data.format", "data.chat_template", "data.if_long", "data.user_special_tokens",
    // In train_gpt_mirror_test.
    "checkpoint.mirror",
    // In train_gpt_dpo_test.
    "train.objective", "dpo.loss", "dpo.beta", "dpo.label_smoothing",
    // In train_gpt_tasks_test.
    "eval.tasks", "eval.data", "eval.every", "eval.limit", "eval.shots",
    // In tests/golden/weights_test.
    "train.numerics",
    // In train_gpt_diloco_test.
    "dist.outer_every", "dist.outer_lr", "dist.outer_momentum", "dist.outer_dtype",
    // In timed_run_test.
    "train.time_budget",
    // In train_gpt_pipeline_test.
    "parallel.pp", "parallel.schedule",
    // In train_gpt_ranks_operation_test, and below.
    "auto", "eval_only", "help", "version", "print_config", "dry_run"};

TEST_F(TrainGptOptions, HelpListsTheOptionsThatAreTestedHere) {
  const Result help = RunProgram({"models/train_gpt", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  std::multiset<std::string> listed, tested(kOthers.begin(), kOthers.end());
  const std::regex option(R"(\n  --([a-z0-9_.]+))");
  for (std::sregex_iterator it(help.out.begin(), help.out.end(), option), end; it != end; ++it)
    listed.insert((*it)[1]);
  for (const Numeric& numeric : NumericOptions()) tested.insert(numeric.key);
  EXPECT_EQ(listed, tested);
}

TEST_F(TrainGptOptions, ThePageIsWhatTheProgramPrints) {
  const Result printed = RunProgram({"models/train_gpt", "--help=markdown"});
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_TRUE(ReadFile("models/options/reference.md") == printed.out)
      << "options have changed; write the page anew:\n"
         "bazel run -c opt //models:train_gpt -- --help=markdown >models/options/reference.md";
}

TEST_F(TrainGptOptions, Switches) {
  const auto out = [](const std::string& option) {
    const Result run = RunProgram({"models/train_gpt", option, "--out_dir=" + Path("none")});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_FALSE(PathExists(Path("none")));
    return run.out;
  };
  EXPECT_THAT(out("--help"), HasSubstr("--optim.lr"));
  EXPECT_THAT(out("--version"), HasSubstr("train_gpt of"));
  EXPECT_THAT(out("--print_config"), HasSubstr("[default.optim]"));
  EXPECT_THAT(out("--dry_run"), HasSubstr("activations"));
}

}  // namespace
}  // namespace lockstep
