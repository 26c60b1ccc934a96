// train_gpt --train.objective=dpo: preferences for answers, as users tune them.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/bpe_json.h"
#include "data/tokenizer/byte_alphabet.h"
#include "tests/rank_runs.h"
#include "tests/sanitized.h"

namespace lockstep {
namespace {
using testing::AllOf;
using testing::HasSubstr;

class Dpo : public RankRuns {
 protected:
  // A model that knows nothing yet, with a tokenizer of bytes and a chat template, and pairs of
  // answers of which the one in small letters is preferred.
  void SetUp() override {
    MakeDirectories(Path("tokenizer"));
    Json vocab = Json::object(), added = Json::array();
    for (int byte = 0; byte < 256; ++byte) {
      vocab[data::BytesToPrintable(std::string(1, static_cast<char>(byte)))] = byte;
    }
    added.push_back(data::SpecialTokenJson<Json>(256, "<|im_start|>"));
    added.push_back(data::SpecialTokenJson<Json>(257, "<|im_end|>"));
    WriteFileAtomically(Path("tokenizer/tokenizer.json"),
                        (data::ByteLevelBpeJson<Json>(vocab, Json::array(), added, nullptr,
                                                      data::ByteLevelJson<Json>(false),
                                                      data::ByteLevelJson<Json>(false)))
                            .dump());
    WriteFileAtomically(Path("template.jinja"),
                        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                        "<|im_end|>\n{% endfor %}"
                        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    std::string text, pairs;
    for (int i = 0; i < 200; ++i) text += "yes or NO, aye or NAY\n";
    for (int i = 0; i < 40; ++i) {
      const std::string small = std::string(1, static_cast<char>('a' + i % 26)) + "yes";
      const std::string large = std::string(1, static_cast<char>('A' + i % 25)) + "NO";
      pairs += Json{{"prompt", std::to_string(i)}, {"chosen", small}, {"rejected", large}}.dump();
      pairs += "\n";
    }
    WriteFileAtomically(Path("base.txt"), text);
    WriteFileAtomically(Path("pairs.jsonl"), pairs);
    Run(1, "base",
        {"--data.path=" + Path("base.txt"), "--data.tokenizer=" + Path("tokenizer/tokenizer.json"),
         "--model.block_size=64", "--model.dropout=0", "--train.steps=10", "--optim.lr=0.01"});
  }

  Arguments Tune(const Arguments& more) const {
    Arguments all = {"--init_from=" + Path("base/latest"),
                     "--data.path=" + Path("pairs.jsonl"),
                     "--data.chat_template=" + Path("template.jinja"),
                     "--train.objective=dpo",
                     "--model.block_size=64",
                     "--model.dropout=0",
                     "--lora.rank=4",
                     "--optim.lr=0.02",
                     "--train.steps=40"};
    for (const std::string& argument : more) {
      const std::string key = argument.substr(0, argument.find('=') + 1);
      std::erase_if(all, [&](const std::string& a) { return a.starts_with(key); });
      all.push_back(argument);
    }
    return all;
  }
  std::string TuneFails(const Arguments& more) {
    const Result run = Wait(Start(1, Train("fails", Tune(more))))[0];
    EXPECT_EQ(run.exit_code, 2) << run;
    return run.err;
  }
  std::string State(const std::string& out, int step) const {
    const std::string folder = Checkpoint(out, step);
    return ReadFile(folder + "/adapter_model.safetensors") +
           ReadFile(folder + "/optimizer.safetensors");
  }
  std::vector<Json> Rewards(const std::string& out) const {
    std::vector<Json> rewards;
    for (const Json& m : Metrics(out)) {
      for (const char* key : {"reward_chosen", "reward_rejected", "reward_accuracy",
                              "val_reward_margin", "val_reward_accuracy"}) {
        if (m.contains(key)) rewards.push_back(m[key]);
      }
    }
    return rewards;
  }
};

TEST_F(Dpo, LearnsToPreferTheChosenAnswers) {
  const Result run = Run(1, "tuned", Tune({}))[0];
  EXPECT_THAT(run.out, AllOf(HasSubstr("36 pairs of answers to train on and 4 held out"),
                             HasSubstr(" | accuracy 100% | ")));
  const auto metrics = Metrics("tuned");
  EXPECT_NEAR(double{metrics[0]["val_loss"]}, 0.693147, 1e-6);
  EXPECT_EQ(metrics[0]["val_reward_margin"], 0);
  EXPECT_NEAR(double{metrics[1]["loss"]}, 0.693147, 1e-6);
  EXPECT_LT(double{metrics.back()["val_loss"]}, 0.3);
  EXPECT_GT(double{metrics.back()["val_reward_accuracy"]}, 0.9);
  EXPECT_GT(double{metrics.back()["reward_accuracy"]}, 0.9);
  EXPECT_NEAR(double{metrics.back()["reward_margin"]},
              double{metrics.back()["reward_chosen"]} - double{metrics.back()["reward_rejected"]},
              1e-9);
  const std::string report = ReadFile(Path("tuned/report.html"));
  EXPECT_THAT(report, AllOf(HasSubstr("Rewards"), HasSubstr("per pair of answers"),
                            testing::Not(HasSubstr("perplexity"))));
  Arguments evaluation = Train("evaluation", Tune({"--init_from=" + Path("tuned/latest")}));
  evaluation.emplace_back("--eval_only");
  const std::string evaluated = Wait(Start(1, evaluation))[0].out;
  const size_t at = evaluated.find("validation loss ");
  ASSERT_NE(at, std::string::npos) << evaluated;
  EXPECT_NEAR(std::stod(evaluated.substr(at + 16)), double{metrics.back()["val_loss"]}, 1e-4);
}

TEST_F(Dpo, ResumesWithTheSameBits) {
  const Arguments options = Tune({"--train.steps=20", "--train.grad_accum=2"});
  Run(1, "whole", options);
  Arguments rest = options;
  rest.push_back("--checkpoint.resume=" + Checkpoint("whole", 10));
  Run(1, "rest", rest);
  EXPECT_EQ(State("rest", 20), State("whole", 20));
}

TEST_F(Dpo, HasTheSameBitsAtAnyNumberOfRanks) {
  const auto options = [&](const std::string& shard) {
    return Tune({"--dist.reduction=ordered", "--train.global_batch_size=8", "--train.steps=10",
                 "--parallel.shard=" + shard});
  };
  Run(1, "alone", options("none"));
  for (const std::string shard : {"none", "optimizer", "gradients", "full"}) {
    const int ranks = shard == "full" && !test::kSanitized ? 4 : 2;
    Run(ranks, shard, options(shard));
    EXPECT_EQ(State(shard, 10), State("alone", 10)) << shard;
    EXPECT_EQ(Numbers(shard), Numbers("alone")) << shard;
    EXPECT_EQ(Rewards(shard), Rewards("alone")) << shard;
  }
}

TEST_F(Dpo, EachOptionActs) {
  Run(1, "usual", Tune({"--train.steps=10"}));
  int i = 0;
  for (const char* option : {"--dpo.beta=0.5", "--dpo.label_smoothing=0.1", "--dpo.loss=ipo"}) {
    const std::string out = "other" + std::to_string(i++);
    Run(1, out, Tune({"--train.steps=10", option}));
    EXPECT_NE(Numbers(out), Numbers("usual")) << option;
  }
  EXPECT_THAT(ReadFile(Path("usual/report.html")), HasSubstr("without a preference it is 0.6931"));
  EXPECT_THAT(ReadFile(Path("other2/report.html")), HasSubstr("without a preference it is 25.0"));
}

// Of rows that the longest pair fills.
TEST_F(Dpo, TakesThePlannedMemory) {
  for (const std::string chunk : {"4096", "32"}) {
    const Result run = Run(1, chunk,
                           Tune({"--model.block_size=27", "--train.steps=3", "--train.batch_size=8",
                                 "--train.loss_chunk=" + chunk}))[0];
    const size_t at = run.out.find("memory  ");
    ASSERT_NE(at, std::string::npos) << run.out;
    const double planned = 1024 * std::stod(run.out.substr(at + 6));  // "624 KiB"
    double measured = 0;
    for (const Json& m : Metrics(chunk)) {
      measured = std::max(measured, m.value("memory_bytes", 0.0));
    }
    EXPECT_NEAR(measured, planned, 0.03 * planned) << chunk;
  }
}

TEST_F(Dpo, ADryRunShowsAPair) {
  Arguments arguments = Train("dry", Tune({}));
  arguments.emplace_back("--dry_run");
  const Result run = Wait(Start(1, arguments))[0];
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, HasSubstr("<|im_start|>assistant\n>>>ayes<|im_end|><<<"));
  EXPECT_THAT(run.out, HasSubstr("rejected:\n"));
}

// A reference without them would be another model than the one that training starts from.
TEST_F(Dpo, RefusesAdaptersThatTheReferenceWouldLack) {
  Run(1, "adapted",
      {"--init_from=" + Path("base/latest"), "--data.path=" + Path("base.txt"),
       "--model.block_size=64", "--model.dropout=0", "--lora.rank=4", "--train.steps=2"});
  const std::string adapted = Checkpoint("adapted", 2);
  EXPECT_THAT(TuneFails({"--init_from=" + adapted}),
              AllOf(HasSubstr("init_from = \"" + adapted), HasSubstr("would lack those of"),
                    HasSubstr("export_gpt --checkpoint=" + adapted + " --out=merged")));
  EXPECT_THAT(TuneFails({"--checkpoint.resume=" + adapted}),
              AllOf(HasSubstr("checkpoint.resume"), HasSubstr("would lack those of " + adapted)));
  EXPECT_THAT(
      TuneFails({"--lora.rank=0", "--lora.init_from=" + adapted}),
      AllOf(HasSubstr("lora.init_from"), HasSubstr("would lack these"), HasSubstr("--out=merged")));
}

TEST_F(Dpo, RefusesWhatCannotBe) {
  EXPECT_THAT(TuneFails({"--lora.rank=0"}),
              AllOf(HasSubstr("the reference is the model without its adapters"),
                    HasSubstr("lora.rank = 16")));
  EXPECT_THAT(TuneFails({"--lora.dropout=0.1"}), HasSubstr("the reference has no dropout"));
  EXPECT_THAT(TuneFails({"--parallel.tp=2"}), HasSubstr("whole answers on each rank"));
  EXPECT_THAT(TuneFails({"--train.objective=lm", "--dpo.beta=0.5", "--data.path="}),
              HasSubstr("dpo.beta = 0.5 (command line) does nothing without train.objective"));
  EXPECT_THAT(TuneFails({"--data.path="}), HasSubstr("rows with prompt, chosen and rejected"));
  EXPECT_THAT(TuneFails({"--data.path=" + Path("base.txt")}),
              HasSubstr("base.txt:1: not valid JSON"));
  EXPECT_THAT(TuneFails({"--model.block_size=20"}),
              AllOf(HasSubstr("0 pairs of answers are there; 40 of more than 20 tokens left out"),
                    HasSubstr("--model.block_size")));
}

}  // namespace
}  // namespace lockstep
