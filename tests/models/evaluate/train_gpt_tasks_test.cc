// eval.tasks of train_gpt, and evaluate, as users run them.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "tests/rank_runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Tasks : public RankRuns {
 protected:
  void SetUp() override {
    std::string text, rows;
    for (int i = 0; i < 200; ++i) text += "the sea is deep\nand the sky is wide\n";
    WriteFileAtomically(Path("text.txt"), text);
    for (int i = 0; i < 5; ++i) {
      rows += R"({"goal": "the sea", "sol1": "is deep", "sol2": "is x)" + std::string(i, 'q') +
              R"(", "label": 0})" + "\n";
    }
    MakeDirectories(Path("evals/piqa"));
    WriteFileAtomically(Path("evals/piqa/validation.jsonl"), rows);
    MakeDirectories(Path("evals/lambada_openai"));
    WriteFileAtomically(Path("evals/lambada_openai/test.jsonl"),
                        "{\"text\": \"the sky is wide\"}\n{\"text\": \"the sea is deep\"}\n");
  }

  Arguments Tasked(const Arguments& more) const {
    Arguments all = {"--data.path=" + Path("text.txt"),
                     "--data.tokenizer=byte",
                     "--train.steps=20",
                     "--train.global_batch_size=4",
                     "--dist.reduction=ordered",
                     "--model.n_layer=2",
                     "--model.dropout=0",
                     "--virtual.tp=2",
                     "--optim.lr=0.01",
                     "--eval.tasks=piqa,lambada_openai",
                     "--eval.data=" + Path("evals")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  // The figures of all lines, as they were written.
  std::vector<std::string> Figures(const std::string& out) const {
    std::vector<std::string> figures;
    for (const Json& line : Metrics(out)) {
      if (line.contains("tasks")) figures.push_back(line["step"].dump() + line["tasks"].dump());
    }
    return figures;
  }
};

TEST_F(Tasks, AreEvaluatedByAnyRanksAlike) {
  const Result run = Run(1, "one", Tasked({}))[0];
  EXPECT_THAT(run.out, HasSubstr("step 20 | piqa acc "));
  const std::vector<std::string> figures = Figures("one");
  ASSERT_EQ(figures.size(), 3u);  // before the first step, after 10, and at the end
  EXPECT_THAT(figures[2], AllOf(HasSubstr("20{"), HasSubstr("\"piqa acc_norm\":"),
                                HasSubstr("\"lambada_openai perplexity\":")));
  EXPECT_THAT(ReadFile(Path("one/report.html")), HasSubstr("piqa acc_norm"));
  Run(2, "two", Tasked({}));
  EXPECT_EQ(Figures("two"), figures);
  Run(2, "sharded", Tasked({"--parallel.shard=full"}));
  EXPECT_EQ(Figures("sharded"), figures);
  Run(2, "tensor", Tasked({"--parallel.tp=2"}));
  EXPECT_EQ(Figures("tensor"), figures);
  Run(2, "pipeline", Tasked({"--parallel.pp=2", "--model.tie_embeddings=false"}));
  Run(1, "untied", Tasked({"--model.tie_embeddings=false"}));
  EXPECT_EQ(Figures("pipeline"), Figures("untied"));
  Run(2, "context", Tasked({"--parallel.cp=2"}));
  Run(1, "virtual", Tasked({"--virtual.cp=2"}));
  EXPECT_EQ(Figures("context"), Figures("virtual"));
}

TEST_F(Tasks, HaveTheirOwnPeriodAndLimit) {
  Run(1, "out", Tasked({"--eval.every=8", "--eval.limit=1"}));
  const std::vector<std::string> figures = Figures("out");
  ASSERT_EQ(figures.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_THAT(figures[i], testing::StartsWith((const char*[]){"0{", "8{", "16{", "20{"}[i]));
    EXPECT_THAT(figures[i],
                testing::AnyOf(HasSubstr("\"piqa acc\":0.0"), HasSubstr("\"piqa acc\":1.0")));
  }
}

TEST_F(Tasks, AreRefusedBeforeTheRunBegins) {
  const auto error = [&](const Arguments& more) {
    const Result run = Wait(Start(1, Train("fails", Tasked(more))))[0];
    EXPECT_GT(run.exit_code, 0) << run;
    EXPECT_FALSE(PathExists(Path("fails/metrics.jsonl")));
    return run.err;
  };
  EXPECT_THAT(error({"--eval.shots=1"}), HasSubstr("piqa/train.jsonl"));
  std::vector<std::string> unknown = Tasked({});
  std::erase_if(unknown, [](const std::string& a) { return a.starts_with("--eval."); });
  unknown.push_back("--eval.limit=3");
  const Result run = Wait(Start(1, Train("fails", unknown)))[0];
  EXPECT_THAT(run.err, AllOf(HasSubstr("eval.limit"), HasSubstr("eval.tasks")));
}

TEST_F(Tasks, EvaluateGivesTheFiguresOfTheRun) {
  Run(1, "run", Tasked({}));
  const Json last = Json::parse(Figures("run").back().substr(2));
  const auto evaluate = [&](const Arguments& more) {
    Arguments all = {"tools/evaluate",
                     "--checkpoint=" + Checkpoint("run", 20),
                     "--tasks=piqa,lambada_openai",
                     "--data=" + Path("evals"),
                     "--threads=1",
                     "--batch_size=2",
                     "--virtual_tp=2",
                     "--json=" + Path("figures.json")};
    all.insert(all.end(), more.begin(), more.end());
    const Result run = RunProgram(all);
    EXPECT_EQ(run.exit_code, 0) << run;
    EXPECT_THAT(run.err, HasSubstr("models/sample_gpt --checkpoint="));
    return std::pair(run.out, ReadFile(Path("figures.json")));
  };
  const auto [table, json] = evaluate({});
  EXPECT_THAT(table, HasSubstr("| lambada_openai |"));
  const auto results = Json::parse(json)["results"];
  EXPECT_EQ(results["piqa"]["acc_norm,none"], last["piqa acc_norm"]);
  EXPECT_EQ(results["lambada_openai"]["perplexity,none"], last["lambada_openai perplexity"]);
  EXPECT_EQ(evaluate({"--nproc=2"}).second, json);
  EXPECT_EQ(evaluate({"--nproc=2", "--tp=2"}).second, json);
  EXPECT_EQ(evaluate({"--nproc=4", "--tp=2"}).first, table);
  EXPECT_THAT(evaluate({"--text=" + Path("text.txt")}).first, HasSubstr("bits_per_byte"));
  const Result refused = RunProgram({"tools/evaluate", "--checkpoint=" + Checkpoint("run", 20)});
  EXPECT_THAT(refused.err, HasSubstr("nothing to evaluate: give --tasks="));
  const Result uneven = RunProgram(
      {"tools/evaluate", "--checkpoint=" + Checkpoint("run", 20), "--tasks=piqa", "--tp=2"});
  EXPECT_THAT(uneven.err, HasSubstr("--tp=2 does not divide the 1 process"));
}

}  // namespace
}  // namespace lockstep
