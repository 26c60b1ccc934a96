// train_gpt whose ranks have stages of the model.
#include <gmock/gmock-matchers.h>
#include <signal.h>

#include "core/error.h"
#include "core/io/file.h"
#include "dist/pipeline/schedule.h"
#include "tests/rank_runs.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class Pipelines : public RankRuns {
 protected:
  // Ordered runs of 8 micro-batches a step.
  static Arguments Ordered(const Arguments& more) {
    Arguments all = {"--model.n_layer=2", "--dist.reduction=ordered",
                     "--train.global_batch_size=16", "--train.steps=20"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

// Weights, optimizer state, losses, norms, validation losses and text, also of a run that goes on
// by another plan.
TEST_F(Pipelines, AreTheRunOfOneProcess) {
  Run(1, "alone", Ordered({}));
  for (const auto& [out, ranks, options] :
       {std::tuple("zb_h1", 2, Arguments{"--parallel.pp=2", "--parallel.schedule=zb_h1"}),
        {"zbv", 4, {"--parallel.pp=2", "--parallel.schedule=zbv"}},
        {"shards", 4, {"--parallel.pp=2", "--parallel.shard=gradients"}},
        {"shards_zbv",
         4,
         {"--parallel.pp=2", "--parallel.shard=full", "--parallel.schedule=zbv",
          "--train.recompute=auto"}},
        {"whole", 2, {"--parallel.pp=2", "--checkpoint.sharded=false"}}}) {
    const std::vector<Result> results = Run(ranks, out, Ordered(options));
    EXPECT_EQ(Bytes(out, 20), Bytes("alone", 20)) << out;
    EXPECT_EQ(Numbers(out), Numbers("alone")) << out;
    EXPECT_THAT(results[0].out, ContainsRegex("2 ranks by .* idle for [1-9][0-9]?% of a step"));
    EXPECT_THAT(results[0].out, HasSubstr("at the peak of a step on rank "));
    const std::string page = ReadFile(Path(StrCat(out, "/report.html")));
    EXPECT_THAT(page, HasSubstr("<h2>Pipeline</h2>"));
    EXPECT_EQ(ReadFile(Path(StrCat(out, "/samples.jsonl"))), ReadFile(Path("alone/samples.jsonl")));
  }
  EXPECT_TRUE(PathExists(Path("zbv/model/model.safetensors")));  // for Hugging Face
  // From half of the run by one plan to the other half by another.
  Run(2, "half",
      Ordered({"--parallel.pp=2", "--parallel.schedule=zbv", "--train.steps=10",
               "--optim.decay_steps=20"}));
  const std::string from = "--checkpoint.resume=" + Checkpoint("half", 10);
  Run(4, "on", Ordered({"--parallel.pp=4", from, "--optim.decay_steps=20"}));
  EXPECT_EQ(Bytes("on", 20), Bytes("alone", 20));
  Run(1, "alone_on", Ordered({from, "--optim.decay_steps=20"}));
  EXPECT_EQ(Bytes("alone_on", 20), Bytes("alone", 20));
}

// Stages, parts of layers, and ranges of these, on eight ranks that write and read each their
// parts.
TEST_F(Pipelines, AreComposedWithPartsOfLayersAndOfWeights) {
  const auto with = [](Arguments more) {
    Arguments all = Ordered({"--virtual.tp=4", "--model.n_embd=32", "--model.n_head=4",
                             "--model.vocab_size=128", "--train.sample_every=10",
                             "--model.tie_embeddings=false"});
    std::erase(all, "--train.steps=20");
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  Run(1, "alone", with({"--train.steps=20"}));
  Run(8, "half",
      with({"--parallel.pp=2", "--parallel.tp=2", "--parallel.shard=full",
            "--parallel.schedule=zb_h1", "--train.steps=10", "--optim.decay_steps=20"}));
  EXPECT_TRUE(PathExists(Checkpoint("half", 10) + "/parts.json"));
  EXPECT_TRUE(PathExists(Path("half/model/model.safetensors")));  // for Hugging Face
  EXPECT_EQ(Bytes("half", 10), Bytes("alone", 10));
  const std::vector<std::string> numbers = Numbers("alone");
  const std::vector<std::string> first = Numbers("half");
  EXPECT_EQ(first, std::vector(numbers.begin(), numbers.begin() + std::ssize(first)));
  const Arguments on = {"--checkpoint.resume=" + Checkpoint("half", 10), "--optim.decay_steps=20",
                        "--train.steps=20"};
  Arguments more = {"--parallel.tp=4", "--parallel.shard=optimizer"};
  more.insert(more.end(), on.begin(), on.end());
  Run(8, "on", with(more));
  EXPECT_EQ(Bytes("on", 20), Bytes("alone", 20));
}

// With the loads of all stages' experts, and the selection biases that follow from them.
TEST_F(Pipelines, OfMixturesAreTheRunOfOneProcess) {
  const Arguments mixture = {"--model.n_expert=4", "--model.router=sigmoid", "--model.z_loss=0.01",
                             "--train.steps=8"};
  const auto with = [&](Arguments more) {
    more.insert(more.end(), mixture.begin(), mixture.end());
    return Ordered(more);
  };
  const auto buffers = [&](const std::string& out) {
    return ReadFile(Checkpoint(out, 8) + "/buffers.safetensors");
  };
  const auto loads = [&](const std::string& out) {
    std::vector<std::string> all;
    for (const auto& line : Metrics(out)) {
      if (line.contains("expert_most")) {
        all.push_back(StrCat(line["expert_most"].dump(), " ", line["expert_least"].dump()));
      }
    }
    return all;
  };
  Run(1, "alone", with({}));
  for (const auto& [out, ranks] : {std::pair("two", 2), {"four", 4}}) {
    Run(ranks, out, with({"--parallel.pp=2", "--parallel.schedule=zb_h1"}));
    EXPECT_EQ(Bytes(out, 8), Bytes("alone", 8)) << out;
    EXPECT_EQ(Numbers(out), Numbers("alone")) << out;
    EXPECT_EQ(buffers(out), buffers("alone")) << out;
    EXPECT_EQ(loads(out), loads("alone")) << out;
  }
  EXPECT_EQ(loads("alone").size(), 8u);
}

// The trace of a rank has its actions, in the order of the schedule.
TEST_F(Pipelines, AreTracedInTheirSchedulesOrder) {
  Run(2, "out", Ordered({"--parallel.pp=2", "--parallel.schedule=interleaved", "--log.trace=3:4"}));
  const auto trace = Json::parse(ReadFile(Path("out/trace-3-4.json")));
  std::vector<std::string> traced, expected;
  for (const auto& event : trace["traceEvents"]) {
    if (event.value("cat", "") == "pipeline") traced.push_back(event["name"]);
  }
  const auto schedule = dist::MakeSchedule(dist::PipelineKind::kInterleaved, 2, 8);
  for (int step = 0; step < 2; ++step) {
    for (const auto& action : schedule.actions[0]) expected.push_back(ToString(action));
  }
  EXPECT_EQ(traced, expected);
}

// A signal to one rank stops all after the same step, with a checkpoint.
TEST_F(Pipelines, StopTogether) {
  Processes ranks = Start(
      2,
      Train("out", Ordered({"--parallel.pp=2", "--train.steps=100000", "--checkpoint.every=0"})));
  ranks[0]->WaitForOutput(" 5/100000");
  ranks[1]->Signal(SIGTERM);
  for (const Result& r : Wait(std::move(ranks))) EXPECT_EQ(r.exit_code, 128 + SIGTERM) << r.err;
  EXPECT_TRUE(PathExists(Path("out/latest/DONE")));
}

TEST_F(Pipelines, RefuseWhatTheyCannot) {
  const auto error = [&](int ranks, const Arguments& options) {
    const auto results = Wait(Start(ranks, Train("out", options)));
    EXPECT_NE(results[0].exit_code, 0);
    return results[0].err;
  };
  EXPECT_THAT(error(3, {"--parallel.pp=2"}),
              HasSubstr("parallel.pp = 2 does not divide the 3 ranks"));
  EXPECT_THAT(error(2, {"--parallel.pp=2", "--parallel.schedule=zbv"}),
              HasSubstr("a pipeline of 4 stages needs as many parts"));
}

}  // namespace
}  // namespace lockstep
