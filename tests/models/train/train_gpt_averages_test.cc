// Validation by file and source, averages of the weights, and z-loss, as users ask for them: their
// bits are those of one process, and survive a resume.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "tests/rank_runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Averages : public RankRuns {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 2000; ++i) text += "abcdefgh ijkl\n"[i * i % 14];
    WriteFileAtomically(Path("train.txt"), text);
    WriteFileAtomically(Path("one.txt"), text.substr(3, 300));
    WriteFileAtomically(Path("two.txt"), std::string(100, 'a') + text.substr(0, 77));
  }

  Arguments With(Arguments more) const {
    Arguments all = {"--data.path=" + Path("train.txt"),
                     "--train.steps=8",
                     "--optim.lr=0.03",
                     "--model.n_layer=2",
                     "--train.eval_every=4",
                     "--checkpoint.every=4",
                     "--train.global_batch_size=8",
                     "--optim.ema=0.8",
                     "--train.z_loss=0.01",
                     "--dist.reduction=ordered",
                     "--virtual.tp=2",
                     "--virtual.cp=2",
                     "--model.tie_embeddings=false",
                     "--train.eval_batches=0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Arguments WithFiles(Arguments more) const {
    more.push_back("--data.val_path=" + Path("one.txt") + "," + Path("two.txt"));
    return With(more);
  }

  // Of the evaluations.
  std::vector<std::string> Evaluations(const std::string& out) const {
    std::vector<std::string> all;
    for (const Json& line : Metrics(out)) {
      if (!line.contains("val_loss")) continue;
      all.push_back(line["val_loss"].dump() + line["val_loss_ema"].dump() +
                    line["val_loss_of"].dump() + line["val_bpb_of"].dump());
    }
    return all;
  }

  // What a program prints of a checkpoint by options.
  static Result Sample(const std::string& checkpoint, const Arguments& more) {
    Arguments all = {"models/sample_gpt", "--checkpoint=" + checkpoint,
                     "--prompt=a",        "--tokens=60",
                     "--seed=3",          "--threads=1"};
    all.insert(all.end(), more.begin(), more.end());
    return RunProgram(all);
  }
};

TEST_F(Averages, AreTheSameUnderEveryPlan) {
  Run(1, "alone", WithFiles({}));
  ASSERT_EQ(Evaluations("alone").size(), 3u);
  for (const auto& [ranks, name, plan] :
       std::vector<std::tuple<int, std::string, Arguments>>{{2, "dp", {}},
                                                            {2, "shard", {"--parallel.shard=full"}},
                                                            {2, "tp", {"--parallel.tp=2"}},
                                                            {2, "pp", {"--parallel.pp=2"}},
                                                            {2, "cp", {"--parallel.cp=2"}}}) {
    Run(ranks, name, WithFiles(plan));
    EXPECT_EQ(Evaluations(name), Evaluations("alone")) << name;
    EXPECT_EQ(Numbers(name), Numbers("alone")) << name;
    EXPECT_EQ(Bytes(name, 8), Bytes("alone", 8)) << name;
  }
  // Where all have the same text, so has their mean.
  const Json last = Metrics("alone").back();
  const double one = last["val_loss_of"][Path("one.txt")],
               two = last["val_loss_of"][Path("two.txt")];
  EXPECT_NEAR(last["val_loss"], (299 * one + 176 * two) / 475, 0.05);  // a window spans both
  EXPECT_NEAR(double{last["val_bpb_of"][Path("one.txt")]}, one / std::log(2.0), 1e-12);
  EXPECT_NE(last["val_loss_ema"], last["val_loss"]);
  // From a checkpoint of parts.
  Run(1, "resumed", WithFiles({"--checkpoint.resume=" + Checkpoint("shard", 4)}));
  EXPECT_EQ(Bytes("resumed", 8), Bytes("alone", 8));
  EXPECT_EQ(Evaluations("resumed").back(), Evaluations("alone").back());
}

TEST_F(Averages, AreTakenByOtherPrograms) {
  Run(1, "alone", With({}));
  Run(2, "shard", With({"--parallel.shard=full"}));
  const std::string checkpoint = Checkpoint("alone", 8);
  const Result trained = Sample(checkpoint, {}), averaged = Sample(checkpoint, {"--weights=ema"});
  EXPECT_EQ(averaged.exit_code, 0) << averaged;
  EXPECT_NE(averaged.out, trained.out);
  EXPECT_EQ(Sample(Checkpoint("shard", 8), {"--weights=ema"}).out, averaged.out);
  const std::string exported = Path("exported");
  const Result result = RunProgram({"models/export_gpt", "--checkpoint=" + Checkpoint("shard", 8),
                                    "--weights=ema", "--out=" + exported});
  ASSERT_EQ(result.exit_code, 0) << result;
  EXPECT_EQ(Sample(exported, {}).out, averaged.out);
  const Result none = Sample(exported, {"--weights=ema"});
  EXPECT_EQ(none.exit_code, 2) << none;
  EXPECT_THAT(none.err, HasSubstr("has no averages of its weights"));
  // A run may begin with them, and end with them.
  Run(1, "without", With({"--optim.ema=0"}));
  Run(1, "begun", With({"--train.steps=10", "--checkpoint.resume=" + Checkpoint("without", 4)}));
  EXPECT_TRUE(Metrics("begun").back().contains("val_loss_ema"));
  Run(1, "ended", With({"--optim.ema=0", "--checkpoint.resume=" + Checkpoint("alone", 4)}));
  EXPECT_EQ(Bytes("ended", 8), Bytes("without", 8)) << "averages changed a bit of training";
}

TEST_F(Averages, ZLossIsNotInTheValidationLoss) {
  const Arguments still = {"--optim.lr=1e-9", "--optim.min_lr=0", "--model.dropout=0",
                           "--data.val_fraction=0.2"};
  Arguments without = still;
  without.push_back("--train.z_loss=0");
  Run(1, "with", With(still));
  Run(1, "without", With(without));
  const Json with_z = Metrics("with").back(), plain = Metrics("without").back();
  EXPECT_NEAR(with_z["val_loss"], plain["val_loss"], 1e-5);
  EXPECT_GT(double{with_z["loss"]}, double{plain["loss"]} + 0.01);
}

TEST_F(Averages, AMixtureTellsTheLossOfEachSource) {
  const Arguments mixed = With({"--data.mix=" + Path("train.txt") + ":3," + Path("two.txt") + ":1",
                                "--data.tokenizer=byte", "--data.path="});
  const Result run = Run(2, "mixed", mixed)[0];
  EXPECT_THAT(run.out, AllOf(HasSubstr("  " + Path("two.txt") + ": "), HasSubstr("bits per byte"),
                             HasSubstr(", of averages ")));
  EXPECT_EQ(Metrics("mixed").back()["val_loss_of"].size(), 2u);
  EXPECT_THAT(ReadFile(Path("mixed/report.html")), HasSubstr("Validation loss of sources"));
}

TEST_F(Averages, FilesAreRefusedWhereTheyDoNothing) {
  const auto error = [&](const Arguments& more) {
    const Result run = RunProgram(Train("refused", more));
    EXPECT_EQ(run.exit_code, 2) << run;
    return run.err;
  };
  const std::string files = "--data.val_path=" + Path("one.txt");
  EXPECT_THAT(error({files, "--data.val_fraction=0.2"}),
              AllOf(HasSubstr("data.val_fraction = 0.2 (command line) does nothing beside"),
                    HasSubstr("data.val_path")));
  EXPECT_THAT(error({"--data.val_path=" + Path("none.txt")}), HasSubstr("data.val_path: "));
  EXPECT_THAT(error({"--train.z_loss=0.1", "--train.objective=dpo", "--lora.rank=2"}),
              HasSubstr("train.z_loss"));
}

}  // namespace
}  // namespace lockstep
