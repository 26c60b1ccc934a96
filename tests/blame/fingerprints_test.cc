// log.fingerprints: the same file under every plan.
#include "models/report/fingerprints.h"

#include <gtest/gtest.h>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/report/json_lines.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using Arguments = std::vector<std::string>;

class Fingerprints : public testing::Test {
 protected:
  Fingerprints() {
    folder_ =
        JoinPath(testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name());
    RemoveTree(folder_);
    MakeDirectories(folder_);
  }

  // Trains a tiny model; returns the run's folder.
  std::string Train(const std::string& name, const Arguments& more) const {
    const std::string out = JoinPath(folder_, name);
    Arguments all = {
        "models/train_gpt",         "--out_dir=" + out,     "--model.n_layer=2",
        "--model.n_head=2",         "--model.n_embd=16",    "--model.block_size=16",
        "--model.dropout=0.1",      "--train.batch_size=2", "--train.global_batch_size=8",
        "--train.eval_every=0",     "--threads=1",          "--train.sample_every=0",
        "--dist.reduction=ordered", "--virtual.tp=2",       "--virtual.cp=2",
        "--log.fingerprints=2"};
    bool steps = false;
    for (const std::string& a : more) steps |= a.starts_with("--train.steps");
    if (!steps) all.push_back("--train.steps=4");
    all.insert(all.end(), more.begin(), more.end());
    const Result result = RunProgram(all);
    EXPECT_EQ(result.exit_code, 0) << result;
    return out;
  }

  // The lines, without what a plan may change.
  static std::vector<std::string> Lines(const std::string& out) {
    std::vector<std::string> lines;
    models::ForEachLine(JoinPath(out, models::kFingerprintsFile), [&](const std::string& text) {
      Json line = ParseJson(text, "line");
      line.erase("ranks");
      line.erase("arithmetic");
      lines.push_back(line.dump());
    });
    return lines;
  }

  std::string folder_;
};

TEST_F(Fingerprints, AreThoseOfTheWholeUnderEveryPlan) {
  const std::vector<std::string> whole = Lines(Train("one", {}));
  ASSERT_EQ(whole.size(), 3u);  // of the start, and of steps 2 and 4
  const models::FingerprintsOfRun run = models::ReadFingerprints(JoinPath(folder_, "one"));
  EXPECT_EQ(run.names.activations,
            (std::vector<std::string>{"h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp", "ln_f"}));
  for (const auto& kind : run.steps.at(2).of_kind) {
    for (const uint64_t of_tensor : kind) EXPECT_NE(of_tensor, 0u);
  }
  const std::map<std::string, Arguments> plans = {
      {"dp", {"--nproc=2"}},
      {"optimizer", {"--nproc=2", "--parallel.shard=optimizer"}},
      {"full", {"--nproc=2", "--parallel.shard=full"}},
      {"tp", {"--nproc=2", "--parallel.tp=2"}},
      {"pp", {"--nproc=2", "--parallel.pp=2"}},
      {"cp", {"--nproc=2", "--parallel.cp=2"}},
      {"tp_and_shards", {"--nproc=4", "--parallel.tp=2", "--parallel.shard=full"}},
      {"recompute", {"--train.recompute=block"}}};
  for (const auto& [name, plan] : plans) EXPECT_EQ(Lines(Train(name, plan)), whole) << name;
}

TEST_F(Fingerprints, GoOnWithARun) {
  const auto whole = models::ReadFingerprints(Train("whole", {"--train.steps=6"}));
  Train("parts", {"--train.steps=3", "--optim.decay_steps=6", "--checkpoint.every=1"});
  const auto parts = models::ReadFingerprints(
      Train("parts", {"--train.steps=6", "--optim.decay_steps=6", "--checkpoint.every=1"}));
  for (const int64_t step : {2, 4, 6}) {
    EXPECT_EQ(parts.steps.at(step).of_kind, whole.steps.at(step).of_kind) << step;
  }
}

}  // namespace
}  // namespace lockstep
