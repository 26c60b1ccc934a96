// A run and its own configuration: runs of every kind, drawn at random, are interrupted and go on
// by the same command, by the one that was printed, and from their file; begun anew from the file
// they are the same run. All with the bits of an undisturbed run, whose file also evaluates it.
// CI draws eight by the commit; forty:
//   CONFIGURATION_RUNS=40 bazel-bin/tests/options/own_configuration_test
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/token_file.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/training/bpe_trainer.h"
#include "tests/selection.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using Arguments = std::vector<std::string>;

constexpr std::string_view kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct DrawnRun {
  Arguments arguments;
  Arguments processes;  // which no configuration holds
};

class OwnConfiguration : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    RemoveTree(Path(""));
    MakeDirectories(Path("tokenizer"));
    std::string text, rows, pairs;
    std::vector<int32_t> tokens;
    for (int i = 0; i < 4000; ++i) {
      text += "abcdefgh ijkl\n"[i * i % 14];
      tokens.push_back(i * i % 14);
    }
    WriteFileAtomically(Path("a text.txt"), text);
    data::WriteTokenFile(Path("a.bin"), data::TokenFormat::kLlmcGpt2, tokens);
    data::WriteTokenFile(Path("b.bin"), data::TokenFormat::kLlmcGpt2, tokens);
    for (int i = 0; i < 60; ++i) {
      Json messages = Json::array();
      messages.push_back({{"role", "user"}, {"content", std::to_string(i)}});
      messages.push_back({{"role", "assistant"}, {"content", std::string(1 + i % 7, 'a')}});
      rows += Json{{"messages", messages}}.dump() + "\n";
      pairs += Json{{"prompt", std::to_string(i)},
                    {"chosen", std::string(1 + i % 5, 'a')},
                    {"rejected", std::string(1 + i % 3, 'B')}}
                   .dump() +
               "\n";
    }
    WriteFileAtomically(Path("chat.jsonl"), rows);
    WriteFileAtomically(Path("pairs.jsonl"), pairs);
    const data::BpeTrainerOptions options{
        .vocab_size = 3 + 256,
        .allow_fewer = true,
        .special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}};
    WriteFileAtomically(
        Path("tokenizer/tokenizer.json"),
        data::ToHuggingFaceJson(data::TrainBpe({}, options), data::Gpt2PreTokenizer(), nullptr));
    WriteFileAtomically(Path("tokenizer/chat_template.jinja"), std::string(kChatMl));
    // What others start from: shapes that are not the defaults.
    const Arguments small = {"--model.n_layer=2", "--model.n_head=2", "--model.n_embd=16",
                             "--train.steps=3"};
    Run(small + Arguments{"--data.path=" + Path("a text.txt"), "--out_dir=" + Path("weights")});
    Run(small + Arguments{"--data.path=" + Path("chat.jsonl"), "--model.block_size=48",
                          "--data.tokenizer=" + Path("tokenizer"),
                          "--out_dir=" + Path("chat weights")});
    Run({"--init_from=" + Path("weights"), "--lora.rank=2", "--train.steps=3",
         "--data.path=" + Path("a text.txt"), "--out_dir=" + Path("adapters")});
  }

  static std::string Path(const std::string& name) {
    return JoinPath(JoinPath(testing::TempDir(), "own configuration"), name);
  }

  static Result Run(const Arguments& arguments) {
    const Result result = RunProgram(Arguments{"models/train_gpt"} + arguments);
    EXPECT_EQ(result.exit_code, 0) << testing::PrintToString(arguments) << result;
    return result;
  }

  template <class T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

  Arguments DrawShape() {
    Arguments shape = {Of<std::string>({"--model.n_layer=4", "--model.n_layer=2"}),
                       "--model.n_head=2", "--model.n_embd=16"};
    return shape + Of<Arguments>({
                       {},
                       {"--model.window=8", "--model.window_pattern=6"},
                       {"--model.bias=true", "--model.qkv_bias=true", "--model.dropout=0.1"},
                       {"--model.position=rope", "--model.norm=rms_norm", "--model.rope_skip=9",
                        "--model.activation=swiglu", "--model.n_kv_head=1"},
                       {"--model.n_expert=4", "--model.n_expert_inner=12"},
                       {"--model.n_expert=2", "--model.router=sigmoid", "--model.n_dense=1"},
                       {"--model.block_size=64", "--model.tie_embeddings=false"},
                   });
  }

  // What is trained, on what, from where.
  Arguments DrawKind() {
    const std::string text = "--data.path=" + Path("a text.txt");
    const std::string weights = "--init_from=" + Path("weights");
    const Arguments chat = {"--init_from=" + Path("chat weights"),
                            "--data.chat_template=" + Path("tokenizer/chat_template.jinja")};
    switch (kind_++ % kKinds) {
      case 0:
        return DrawShape() + Arguments{text};
      case 1:
        return DrawShape() +
               Arguments{"--data.mix=" + Path("a.bin") + ":0.7," + Path("b.bin") + ":0.3"};
      case 2:
        return {"--model.preset=shakespeare-char-cpu",
                "--model.n_layer=1",
                "--model.n_embd=16",
                "--model.n_head=2",
                "--model.block_size=32",
                text};
      case 3:
        return {weights, text};
      case 4:
        return {weights, text, "--model.n_layer=2", "--model.n_kv_head=0"};
      case 5:
        return {weights, text, "--lora.rank=2",
                Of<std::string>({"--lora.base=nf4", "--lora.targets=*attn*"})};
      case 6:
        return {"--init_from=" + Path("adapters"), "--lora.rank=2", text};
      case 7:
        return chat + Arguments{"--data.path=" + Path("chat.jsonl")};
      case 8:
        return chat + Arguments{"--data.mix=" + Path("chat.jsonl") + ":0.6," + Path("a text.txt") +
                                ":0.4"};
      case 9:
        return chat + Arguments{"--data.path=" + Path("pairs.jsonl"), "--train.objective=dpo",
                                "--lora.rank=2", Of<std::string>({"--dpo.loss=ipo", "--seed=7"})};
      case 10:
        return {weights, text, "--lora.init_from=" + Path("adapters")};
      case 11:
        return {"--checkpoint.resume=" + Path("weights"), text};
      default:
        return DrawShape() + Arguments{text, "--train.steps=0", "--train.epochs=8"};
    }
  }

  // Ranks that divide a run from random weights.
  DrawnRun DrawPlan() {
    const Arguments kind =
        DrawShape() + Arguments{"--data.path=" + Path("a text.txt"), "--train.batch_size=2",
                                "--train.global_batch_size=4", "--dist.reduction=ordered"};
    return {kind +
                Of<Arguments>({{"--parallel.shard=full"},
                               {"--parallel.shard=optimizer", "--checkpoint.sharded=false"},
                               {"--parallel.tp=2", "--checkpoint.async=false"},
                               {"--parallel.pp=2", "--parallel.schedule=zb_h1"},
                               {"--parallel.cp=2", "--train.recompute=block"}}) +
                Frequent() + Arguments{"--train.steps=120"},
            {"--nproc=2"}};
  }

  DrawnRun DrawRun() {
    if (kind_ % kKinds == kKinds - 1) {
      ++kind_;
      return DrawPlan();
    }
    Arguments run = DrawKind();
    const Arguments length = {"--train.steps=250"};
    if (testing::PrintToString(run).find("epochs") == std::string::npos) run = run + length;
    const Arguments more =
        Of<Arguments>({{}, {"--train.precision=bf16"}, {"--optim.schedule=linear"}});
    // A checkpoint's optimizer state belongs to its precision.
    const bool resumes = run[0].starts_with("--checkpoint.resume");
    if (!resumes || more.empty() || more[0] != "--train.precision=bf16") run = run + more;
    run = run + Of<Arguments>({{"--train.batch_size=2"},
                               {"--train.batch_size=2", "--train.global_batch_size=4"},
                               {"--train.batch_size=2", "--train.grad_accum=2"}});
    return {run + Frequent(), {}};
  }

  static Arguments Frequent() {
    return {"--train.eval_every=60",
            "--train.eval_batches=1",
            "--train.sample_tokens=2",
            "--train.log_every=1",
            "--threads=1",
            "--checkpoint.every=30"};
  }

  static std::string Bytes(const std::string& out) {
    std::string bytes;
    for (const std::string& name : ListDirectory(out + "/latest/")) {
      if (name.ends_with(".safetensors")) bytes += name + ReadFile(out + "/latest/" + name);
    }
    return bytes;
  }

  // Ends a run in `out` by a signal after some steps; whether it was still running.
  bool Interrupt(const Arguments& run, const std::string& out) {
    Subprocess program(Arguments{"models/train_gpt"} + run + Arguments{"--out_dir=" + out});
    program.WaitForOutput(" " + std::to_string(1 + random_() % 50) + "/");
    program.Signal(Of<int>({SIGINT, SIGTERM}));
    const Result result = program.Wait();
    printed_ = "";
    const size_t at = result.out.rfind("or:\n");
    if (at != std::string::npos) {
      printed_ = result.out.substr(at + 4, result.out.find('\n', at + 4) - at - 4);
      printed_.erase(0, printed_.find("models/"));  // a rank's number
    }
    EXPECT_TRUE(result.exit_code == 0 || !printed_.empty()) << result;
    return result.exit_code != 0;
  }

  // The file of a run evaluates the best of its weights on its data.
  static void ExpectEvaluation(const std::string& out, const Arguments& processes) {
    double best = INFINITY;
    std::istringstream lines(ReadFile(out + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto m = Json::parse(line);
      if (m["step"] > 0 && m.contains("val_loss")) best = std::min<double>(best, m["val_loss"]);
    }
    const Result result =
        Run(Arguments{out + "/config.toml", "--eval_only", "--init_from=" + out} + processes);
    char loss[64];
    std::snprintf(loss, sizeof(loss), "validation loss %.4f", best);
    EXPECT_THAT(result.out, testing::HasSubstr(loss)) << result;
  }

  void Check(const DrawnRun& drawn, const std::string& folder) {
    const std::string whole = folder + "/whole", cut = folder + "/cut", anew = folder + "/anew";
    const Arguments run = drawn.arguments + drawn.processes;
    Run(run + Arguments{"--out_dir=" + whole});
    if (HasFailure()) return;
    const std::string bytes = Bytes(whole);
    for (int way = 0; way < 3; ++way) {
      RemoveTree(cut);
      if (!Interrupt(run, cut)) continue;
      ++interrupted_;
      const Result result =
          way == 0 ? RunProgram(Arguments{"models/train_gpt"} + run + Arguments{"--out_dir=" + cut})
          : way == 1
              ? RunProgram({"/bin/sh", "-c", printed_})
              : RunProgram(Arguments{"models/train_gpt", cut + "/config.toml"} + drawn.processes);
      EXPECT_EQ(result.exit_code, 0) << "way " << way << ", printed: " << printed_ << result;
      EXPECT_EQ(Bytes(cut), bytes) << "way " << way;
    }
    Run(Arguments{whole + "/config.toml", "--out_dir=" + anew} + drawn.processes);
    EXPECT_EQ(Bytes(anew), bytes) << "begun anew from its file";
    ExpectEvaluation(whole, drawn.processes);
    RemoveTree(folder);
  }

  static constexpr int kKinds = 14;

  std::mt19937 random_;
  int kind_ = 0;  // of the next run
  std::string printed_;
  int interrupted_ = 0;
};

int NumberOf(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

TEST_F(OwnConfiguration, ContinuesAndRepeatsEveryRun) {
  const int rounds = NumberOf("CONFIGURATION_RUNS", test::TakesAll() ? 8 : 3);
  const int seed = NumberOf("PLAN_SEED", 0);
  for (int i = 0; i < rounds && !HasFailure(); ++i) {
    random_.seed(static_cast<uint32_t>(1000 * seed + i));
    kind_ = seed * rounds + i;
    const DrawnRun run = DrawRun();
    SCOPED_TRACE("PLAN_SEED=" + std::to_string(seed) + ", run " + std::to_string(i) + ": " +
                 testing::PrintToString(run.arguments));
    Check(run, Path("run-" + std::to_string(i) + " of it"));
  }
  EXPECT_GT(interrupted_, 0);  // the machine may be slow to signal, and runs are short
}

}  // namespace
}  // namespace lockstep
