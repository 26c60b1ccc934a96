// Each option of train_gpt does what --help says: a run with it differs as it should from one
// without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "core/cuda/device.h"
#include "core/io/file.h"
#include "data/prepare/prepare.h"
#include "data/token_file.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using Arguments = std::vector<std::string>;

struct TrainingRun {
  Result result;
  std::string folder;

  // The numbers that training gave, except times and learning rates: equal for equal runs.
  std::string Numbers() const {
    std::string numbers;
    for (const nlohmann::json& line : Lines("metrics.jsonl"))
      for (const char* field : {"loss", "grad_norm", "val_loss"})
        if (line.contains(field)) numbers += line[field].dump() + " ";
    return numbers;
  }
  std::vector<nlohmann::json> Lines(const std::string& file) const {
    std::vector<nlohmann::json> lines;
    if (!PathExists(folder + "/" + file)) return lines;
    std::istringstream in(ReadFile(folder + "/" + file));
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  size_t Validations() const {
    size_t n = 0;
    for (const nlohmann::json& line : Lines("metrics.jsonl")) n += line.contains("val_loss");
    return n;
  }
  std::vector<int> Checkpoints() const {
    std::vector<int> steps;
    for (const std::string& name : ListDirectory(folder + "/checkpoints"))
      if (name.starts_with("step-")) steps.push_back(std::stoi(name.substr(5)));
    std::sort(steps.begin(), steps.end());
    return steps;
  }
};

// Runs train_gpt on a small model, at most a second each; equal arguments run only once.
class TrainGptOptions : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = JoinPath(testing::TempDir(), "options");
    RemoveTree(folder_);
    MakeDirectories(folder_);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "abcdefgh ijkl\n"[i * i % 14];
    WriteFileAtomically(Path("other.txt"), text);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 400; ++i) tokens.push_back(i % 11 == 0 ? 50256 : i * i % 14);
    data::WriteTokenFile(Path("documents.bin"), data::TokenFormat::kLlmcGpt2, tokens);
    runs_.clear();
  }

  static std::string Path(const std::string& name) { return JoinPath(folder_, name); }

  static const TrainingRun& Train(const Arguments& more) {
    const auto [it, fresh] = runs_.try_emplace(more);
    if (fresh) {
      TrainingRun& run = it->second;
      run.folder = Path("run" + std::to_string(runs_.size()));
      Arguments all = {"models/train_gpt",     "--model.n_layer=1",
                       "--model.n_head=2",     "--model.n_embd=16",
                       "--threads=1",          "--model.block_size=16",
                       "--train.batch_size=4", "--train.steps=6",
                       "--optim.warmup=2",     "--checkpoint.every=2",
                       "--train.eval_every=3", "--train.eval_batches=1",
                       "--train.log_every=2",  "--train.sample_tokens=8"};
      // An option may be given once.
      for (const std::string& argument : more)
        std::erase_if(all, [&](const std::string& a) {
          return a.starts_with(argument.substr(0, argument.find('=') + 1));
        });
      all.insert(all.end(), more.begin(), more.end());
      if (std::none_of(more.begin(), more.end(),
                       [](const std::string& a) { return a.starts_with("--out_dir="); }))
        all.push_back("--out_dir=" + run.folder);
      run.result = RunProgram(all);
      EXPECT_EQ(run.result.exit_code, 0) << testing::PrintToString(all) << run.result.err;
    }
    return it->second;
  }

  static std::string folder_;
  static std::map<Arguments, TrainingRun> runs_;
};
std::string TrainGptOptions::folder_;
std::map<Arguments, TrainingRun> TrainGptOptions::runs_;

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
const Arguments kSigmoid = {"--model.n_expert=4", "--model.router=sigmoid"};

const std::vector<Numeric>& NumericOptions() {
  static const std::vector<Numeric> options = {
      {"seed", "7"},
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
      {"model.attn_scale", "0.5"},
      {"model.attn_softcap", "0.5"},
      {"model.window", "3"},
      {"model.window_pattern", "2", kWindow},
      {"model.norm_offset", "1"},
      {"model.norm_place", "sandwich"},
      {"model.rope_local_theta", "100", kPattern},
      {"model.rope_skip", "1", kRope},
      {"model.embed_scale", "4", kRope},
      {"model.logit_softcap", "2"},
      {"model.n_inner", "32"},
      {"model.norm_eps", "0.1"},
      {"model.init_std", "0.05"},
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
      {"optim.warmup", "3"},
      {"optim.decay_steps", "4"},
      {"optim.decay_fraction", "0.5", {"--optim.schedule=wsd"}},
      {"optim.beta1", "0.5"},
      {"optim.beta2", "0.5"},
      {"optim.eps", "0.01"},
      {"optim.momentum", "0.5", {"--optim.name=sgd"}},
      {"optim.nesterov", "false", {"--optim.name=sgd", "--optim.momentum=0.8"}},
      {"optim.weight_decay", "10"},
      {"optim.clip", "0.01"},
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
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("the char tokenizer has no token for their ends"));
}

// ---- Options that change something else: a test each, named in kOthers ----

const std::set<std::string> kOthers = {
    "device", "threads", "out_dir", "init_from", "data.path", "data.mix", "data.field",
    "train.steps", "train.epochs", "train.cuda_graphs", "train.loss_chunk", "train.recompute",
    "train.offload", "train.loss_scale", "train.loss_scale_every", "train.max_skips",
    "train.log_every", "train.eval_every", "train.sample_every", "train.sample_tokens",
    "train.sample_prompt", "checkpoint.every", "checkpoint.keep", "checkpoint.keep_best",
    "checkpoint.resume", "checkpoint.save_initial", "log.trace",
    // Tested on several ranks in train_gpt_ranks_test; what dist.check and check_every find, in
    // tests/dist and trainer_ranks_test.
    "checkpoint.async", "checkpoint.sharded", "dist.backend", "dist.bucket_mib", "dist.check",
    "dist.check_every", "dist.compress", "dist.first_bucket_mib", "dist.heartbeat",
    "dist.reduction", "dist.timeout", "parallel.reshard_after_forward", "parallel.shard",
    "parallel.shard_ranks", "parallel.tp", "virtual.tp", "parallel.cp", "virtual.cp", "parallel.ep",
    // In train_gpt_lora_test, and in tests/models/peft/adapter_programs_test.
    "lora.rank", "lora.alpha", "lora.dropout", "lora.targets", "lora.rank_stabilized",
    "lora.init_from", "lora.base",
    // In tests/data: train_gpt_chat_test, conversation_encoder_test.
    "data.format", "data.chat_template", "data.if_long", "data.user_special_tokens",
    // In train_gpt_dpo_test.
    "train.objective", "dpo.loss", "dpo.beta", "dpo.label_smoothing",
    // In train_gpt_pipeline_test.
    "parallel.pp", "parallel.schedule",
    // In train_gpt_ranks_test.
    "eval_only", "help", "version", "print_config", "dry_run"};

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

TEST_F(TrainGptOptions, DeviceChoosesWhereItComputes) {
  EXPECT_THAT(Train({"--device=cpu"}).result.out, HasSubstr("computes   on cpu,"));
  if (cuda::kSimulated) {
    EXPECT_THAT(Train({"--device=sim"}).result.out, HasSubstr("computes   on sim:0,"));
  }
  const Result run = RunProgram({"models/train_gpt", "--device=cuda:999", "--dry_run"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("cuda"));
}

TEST_F(TrainGptOptions, Threads) {
  EXPECT_THAT(Train({"--threads=3"}).result.out, HasSubstr(", 3 threads,"));
  EXPECT_EQ(Train({"--threads=3"}).Numbers(), Train({}).Numbers());
}

TEST_F(TrainGptOptions, OutDirHoldsTheRun) {
  const std::string folder = Path("elsewhere");
  Train({"--out_dir=" + folder});
  EXPECT_TRUE(PathExists(folder + "/metrics.jsonl"));
  EXPECT_TRUE(PathExists(folder + "/latest/model.safetensors"));
}

TEST_F(TrainGptOptions, InitFromStartsWithTheseWeights) {
  const TrainingRun& first = Train({});
  const TrainingRun& second = Train({"--init_from=" + first.folder + "/latest"});
  EXPECT_EQ(second.Lines("metrics.jsonl").front()["val_loss"],
            first.Lines("metrics.jsonl").back()["val_loss"]);
}

TEST_F(TrainGptOptions, DataPathIsWhatItTrainsOn) {
  EXPECT_THAT(Train({"--data.path=" + Path("other.txt")}).result.out, HasSubstr("other.txt: 360"));
}

// A mixture of one source is that source; of two, it tells their epochs, and resumes exactly.
TEST_F(TrainGptOptions, DataMixIsWhatItTrainsOn) {
  const std::string other = Path("other.txt"), third = Path("third.txt");
  WriteFileAtomically(third, std::string(300, 'z') + std::string(300, 'a'));
  const auto run = [&](const std::string& argument, const Arguments& more = {}) {
    Arguments all = {argument, "--data.tokenizer=byte"};
    all.insert(all.end(), more.begin(), more.end());
    return Train(all);
  };
  EXPECT_EQ(run("--data.mix=" + other + ":3").Numbers(), run("--data.path=" + other).Numbers());
  const std::string mix = "--data.mix=" + other + ":0.7," + third + ":0.3";
  const TrainingRun whole = run(mix);
  // 24 samples: 17 of 22 windows, 7 of 33.
  EXPECT_THAT(whole.result.out, AllOf(HasSubstr("other.txt: weight 7, 360 tokens, 0.773 epochs"),
                                      HasSubstr("third.txt: weight 3, 540 tokens, 0.212 epochs")));
  const TrainingRun resumed =
      run(mix, {"--checkpoint.resume=" + whole.folder + "/checkpoints/step-00000004"});
  EXPECT_EQ(resumed.Lines("metrics.jsonl").back()["loss"],
            whole.Lines("metrics.jsonl").back()["loss"]);
}

// Presets name a tokenizer for text, which gives way to that of prepared data. The run's folder
// records what was used, so that its config.toml alone continues it.
TEST_F(TrainGptOptions, PresetsRecordTheTokenizerOfPreparedData) {
  const std::string tokens = Path("prepared");
  data::Prepare({.paths = {Path("other.txt")},
                 .text = {},
                 .tokenizer = std::make_shared<data::ByteTokenizer>(),
                 .out_dir = tokens,
                 .val_fraction = 0,
                 .threads = 1});
  for (const std::string& data : {"--data.path=" + tokens, "--data.mix=" + tokens + ":1"}) {
    const TrainingRun first = Train({"--model.preset=llama-tiny", data});
    const std::string again = first.folder + "-again";
    const Result resumed =
        RunProgram({"models/train_gpt", first.folder + "/config.toml", "--out_dir=" + again,
                    "--checkpoint.resume=" + first.folder + "/checkpoints/step-00000004"});
    ASSERT_EQ(resumed.exit_code, 0) << resumed;
    EXPECT_THAT(resumed.out, Not(HasSubstr("with a different configuration")));
    EXPECT_EQ((TrainingRun{resumed, again}.Lines("metrics.jsonl").back()["loss"]),
              first.Lines("metrics.jsonl").back()["loss"]);
    const Result sample = RunProgram({"models/sample_gpt", "--checkpoint=" + again, "--prompt=abc",
                                      "--tokens=5", "--threads=1"});
    EXPECT_EQ(sample.exit_code, 0) << sample;
  }
}

TEST_F(TrainGptOptions, DataFieldIsTheText) {
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += "{\"id\": 1, \"body\": \"abc def ghi jkl\"}\n";
  WriteFileAtomically(Path("body.jsonl"), lines);
  EXPECT_THAT(Train({"--data.path=" + Path("body.jsonl"), "--data.field=body"}).result.out,
              HasSubstr("body.jsonl: 405"));
}

TEST_F(TrainGptOptions, StepsAndEpochsAreTheLength) {
  EXPECT_EQ(Train({"--train.steps=3"}).Lines("metrics.jsonl").back()["step"], 3);
  // 360 tokens are 22 windows of 16 with a target each: 2 epochs of 4 at a time are 11 steps.
  const TrainingRun& run =
      Train({"--data.path=" + Path("other.txt"), "--train.epochs=2", "--train.steps=0"});
  EXPECT_EQ(run.Lines("metrics.jsonl").back()["step"], 11);
}

// The numbers do not differ; the report says that graphs were submitted.
TEST_F(TrainGptOptions, CudaGraphsAreSubmittedOnAGpu) {
  const std::string gpu = cuda::kSimulated ? "--device=sim" : "--device=cuda";
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  const TrainingRun& graphs = Train({gpu});
  const TrainingRun& eager = Train({gpu, "--train.cuda_graphs=false"});
  EXPECT_THAT(graphs.result.out, HasSubstr(", CUDA graphs,"));
  EXPECT_THAT(eager.result.out, Not(HasSubstr("CUDA graphs")));
  EXPECT_EQ(graphs.Numbers(), eager.Numbers());
}

TEST_F(TrainGptOptions, LossScale) {
  const TrainingRun& run =
      Train({"--train.precision=fp16", "--train.loss_scale=1024", "--train.loss_scale_every=2"});
  std::vector<double> scales;
  for (const nlohmann::json& line : run.Lines("metrics.jsonl")) {
    if (line["step"] > 0) scales.push_back(line["loss_scale"]);
  }
  EXPECT_EQ(scales, (std::vector<double>{1024, 2048, 2048, 4096, 4096, 8192}));
}

// The logits of only this many tokens are in memory at once; the loss is the same up to rounding.
TEST_F(TrainGptOptions, LossChunkBoundsMemory) {
  const std::string batch = "--train.batch_size=32";  // 512 tokens
  const TrainingRun& whole = Train({batch, "--train.loss_chunk=0"});
  const TrainingRun& chunks = Train({batch, "--train.loss_chunk=64"});
  const auto last = [](const TrainingRun& run, const char* field) {
    return run.Lines("metrics.jsonl").back()[field].get<double>();
  };
  const double logits = 512 * 90 * 4;  // of a vocabulary of some 90 characters
  EXPECT_LT(last(chunks, "memory_bytes"), last(whole, "memory_bytes") - 0.5 * logits);
  EXPECT_NEAR(last(chunks, "val_loss"), last(whole, "val_loss"), 1e-4);
}

// The same numbers for less memory.
TEST_F(TrainGptOptions, RecomputeLowersMemory) {
  const Arguments model = {"--train.batch_size=32", "--model.dropout=0.2", "--model.n_layer=3"};
  const auto with = [&](const std::string& what) -> const TrainingRun& {
    Arguments all = model;
    all.push_back("--train.recompute=" + what);
    return Train(all);
  };
  const auto memory = [](const TrainingRun& run) {
    return run.Lines("metrics.jsonl").back()["memory_bytes"].get<double>();
  };
  const TrainingRun& plain = Train(model);
  double last = memory(plain);
  for (const char* what : {"gelu,layer_norm", "mlp", "block"}) {
    EXPECT_EQ(with(what).Numbers(), plain.Numbers()) << what;
    EXPECT_LT(memory(with(what)), last) << what;
    last = memory(with(what));
  }
  EXPECT_EQ(with("attention").Numbers(), plain.Numbers());
  EXPECT_THAT(with("block").result.out, HasSubstr("recomputes all blocks"));
  EXPECT_THAT(with("auto").result.out, HasSubstr("recomputes nothing, chosen by the memory plan"));
  const auto error = [](const Arguments& arguments) {
    Arguments all = {"models/train_gpt", "--dry_run"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return RunProgram(all).err;
  };
  EXPECT_THAT(error({"--train.offload=activations", "--device=cpu"}),
              HasSubstr("this run is on the CPU: leave it out"));
  EXPECT_THAT(error({"--train.recompute=swiglu"}), HasSubstr("has no swiglu: leave it out"));
  EXPECT_THAT(error({"--train.recompute=gelu", "--train.precision=bf16", "--device=cpu"}),
              HasSubstr("gelu is part of a matrix product"));
}

// It trains where it would not otherwise.
TEST_F(TrainGptOptions, RecomputeFitsAModelIntoAGpusMemory) {
  if (!cuda::kSimulated || cuda::DeviceCount() == 0) GTEST_SKIP() << "a simulated GPU's memory";
  const auto run = [](const std::string& recompute) {
    return RunProgram(
        {"models/train_gpt", "--device=sim", "--model.n_layer=6", "--model.n_head=2",
         "--model.n_embd=64", "--model.block_size=32", "--train.batch_size=16", "--train.steps=2",
         "--optim.warmup=1", "--train.eval_batches=1", "--train.eval_every=0",
         "--train.sample_tokens=0", "--train.cuda_graphs=false", "--train.recompute=" + recompute,
         "--out_dir=" + Path("fits_" + recompute)},
        {{"CUDASIM_MEMORY", "12M"}});
  };
  const Result none = run("none"), automatic = run("auto");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(
      none.err,
      testing::AllOf(HasSubstr("sim:0 has 12.0 MiB. What would fit: train.batch_size=8 "
                               "train.grad_accum=2 ("),
                     HasSubstr("; train.recompute="), HasSubstr("; train.offload=activations (")));
  EXPECT_EQ(automatic.exit_code, 0) << automatic.err;
  EXPECT_THAT(automatic.out, HasSubstr("recomputes the blocks of the first 3 of 6 layers, chosen "
                                       "by the memory plan"));
}

TEST_F(TrainGptOptions, OffloadLowersAGpusMemory) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  // Without graphs, whose memory is counted in pieces larger than this model.
  const Arguments model = {cuda::kSimulated ? "--device=sim" : "--device=cuda",
                           "--train.cuda_graphs=false", "--model.n_layer=6",
                           "--train.batch_size=16", "--train.steps=3"};
  Arguments offload = model;
  offload.push_back("--train.offload=activations");
  const auto memory = [](const TrainingRun& run) {
    return run.Lines("metrics.jsonl").back()["memory_bytes"].get<double>();
  };
  EXPECT_EQ(Train(offload).Numbers(), Train(model).Numbers());
  EXPECT_LT(memory(Train(offload)), 0.6 * memory(Train(model)));
  EXPECT_THAT(Train(offload).result.out, HasSubstr("offloads   activations"));
  for (const char* what : {"optimizer", "weights", "activations,optimizer,weights"}) {
    offload.back() = std::string("--train.offload=") + what;
    EXPECT_EQ(Train(offload).Numbers(), Train(model).Numbers()) << what;
    EXPECT_LT(memory(Train(offload)), memory(Train(model))) << what;
  }
  EXPECT_LT(memory(Train(offload)), 0.4 * memory(Train(model)));
  EXPECT_THAT(Train(offload).result.out,
              HasSubstr("offloads   activations, optimizer state, weights of blocks to the host"));
}

TEST_F(TrainGptOptions, LogEverySetsTheLinesOnTheTerminal) {
  const auto lines = [](const TrainingRun& run) {
    const std::regex line(R"(\nstep +\d+/6 \| loss)");
    const std::string& out = run.result.out;
    return std::distance(std::sregex_iterator(out.begin(), out.end(), line), {});
  };
  EXPECT_EQ(lines(Train({"--train.log_every=1"})), 6);
  EXPECT_EQ(lines(Train({"--train.log_every=3"})), 3);  // the first too
}

TEST_F(TrainGptOptions, EvalEverySetsTheStepsBetweenValidations) {
  EXPECT_EQ(Train({"--train.eval_every=3"}).Validations(), 3u);  // before the first, 3, 6
  EXPECT_EQ(Train({"--train.eval_every=1"}).Validations(), 7u);
}

TEST_F(TrainGptOptions, Samples) {
  EXPECT_EQ(Train({"--train.sample_every=2"}).Lines("samples.jsonl").size(), 3u);
  EXPECT_EQ(Train({"--train.sample_every=0"}).Lines("samples.jsonl").size(), 1u);
  EXPECT_EQ(Train({"--train.sample_tokens=0"}).Lines("samples.jsonl").size(), 0u);
  const auto text = [](const TrainingRun& run) {
    return run.Lines("samples.jsonl").back()["text"].get<std::string>();
  };
  EXPECT_EQ(text(Train({"--train.sample_tokens=30"})).size() -
                text(Train({"--train.sample_tokens=10"})).size(),
            20u);
  const TrainingRun& prompted = Train({"--train.sample_prompt=The "});
  EXPECT_NE(text(prompted), text(Train({})));
  EXPECT_THAT(prompted.result.out, HasSubstr("---- sample ----\nThe " + text(prompted)));
}

TEST_F(TrainGptOptions, Checkpoints) {
  using testing::ElementsAre;
  EXPECT_THAT(Train({"--checkpoint.keep=0"}).Checkpoints(), ElementsAre(2, 4, 6));
  EXPECT_THAT(Train({"--checkpoint.keep=2"}).Checkpoints(), ElementsAre(4, 6));
  EXPECT_THAT(Train({"--checkpoint.every=3", "--checkpoint.keep=0"}).Checkpoints(),
              ElementsAre(3, 6));
  EXPECT_THAT(Train({"--checkpoint.save_initial=true", "--checkpoint.keep=0"}).Checkpoints(),
              ElementsAre(0, 2, 4, 6));
}

// At this learning rate the loss rises from the first evaluation on.
TEST_F(TrainGptOptions, TheBestCheckpointIsKept) {
  using testing::ElementsAre;
  const Arguments rising = {"--optim.lr=1",         "--optim.schedule=constant",
                            "--optim.warmup=0",     "--train.eval_every=1",
                            "--checkpoint.every=1", "--checkpoint.keep=1"};
  Arguments newest_only = rising;
  newest_only.push_back("--checkpoint.keep_best=false");
  std::map<double, int64_t> losses;
  for (const auto& line : Train(rising).Lines("metrics.jsonl")) {
    if (line.contains("val_loss") && line["step"] > 0) losses[line["val_loss"]] = line["step"];
  }
  const int64_t best = losses.begin()->second;
  ASSERT_LT(best, 6);
  EXPECT_THAT(Train(rising).Checkpoints(), ElementsAre(best, 6));
  EXPECT_EQ(ReadFile(Train(rising).folder + "/best/DONE"),
            ReadFile(Train(rising).folder + "/checkpoints/step-0000000" + std::to_string(best) +
                     "/DONE"));
  EXPECT_THAT(Train(rising).result.out,
              HasSubstr("the best checkpoint is that of step " + std::to_string(best) + ": "));
  // A checkpoint that is not kept as the best is not reported as the best.
  EXPECT_THAT(Train(newest_only).Checkpoints(), ElementsAre(6));
  Arguments all = rising;
  all.back() = "--checkpoint.keep=0";
  all.push_back("--checkpoint.keep_best=false");
  EXPECT_THAT(Train(all).result.out, Not(HasSubstr("the best checkpoint")));
}

TEST_F(TrainGptOptions, ResumeContinuesFromThere) {
  const TrainingRun& whole = Train({"--checkpoint.keep=0"});
  const TrainingRun& rest = Train({"--checkpoint.keep=0", "--checkpoint.resume=" + whole.folder +
                                                              "/checkpoints/step-00000004"});
  EXPECT_EQ(rest.Lines("metrics.jsonl").front()["step"], 5);
  EXPECT_EQ(rest.Lines("metrics.jsonl").back()["val_loss"],
            whole.Lines("metrics.jsonl").back()["val_loss"]);
}

TEST_F(TrainGptOptions, TraceIsOfTheseSteps) {
  EXPECT_TRUE(PathExists(Train({"--log.trace=2:3"}).folder + "/trace-2-3.json"));
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
  EXPECT_THAT(out("--print_config"), HasSubstr("[optim]"));
  EXPECT_THAT(out("--dry_run"), HasSubstr("activations"));
}

}  // namespace
}  // namespace lockstep
