// train_gpt on workers that make steps of their own and meet after a round of them (DiLoCo).
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "core/io/file.h"
#include "models/checkpoint/checkpoint.h"
#include "tests/gpu_test.h"
#include "tests/rank_runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DiLoCo : public RankRuns {
 protected:
  // All that a checkpoint of two workers holds of weights and states.
  std::vector<std::string> Files(const std::string& out, int step) const {
    std::vector<std::string> files;
    for (const char* name : {"model.safetensors", "optimizer.safetensors",
                             "optimizer.worker-1.safetensors", "optimizer.outer.safetensors"}) {
      files.push_back(ReadFile(Checkpoint(out, step) + "/" + name));
    }
    return files;
  }

  // A run that nothing interrupts, twice; one that is killed, and one that is told to end within a
  // round: all have the same bits.
  void CheckResumes(const Arguments& more) {
    const Arguments rounds = [&] {
      Arguments all = {"--dist.outer_every=5", "--train.steps=40", "--train.global_batch_size=8"};
      all.insert(all.end(), more.begin(), more.end());
      return all;
    }();
    Run(2, "straight", rounds);
    Run(2, "again", rounds);
    EXPECT_EQ(Files("again", 40), Files("straight", 40));
    KillAfterCheckpoint(Start(2, Train("killed", rounds)), "killed", 10);
    Run(2, "killed", rounds);
    EXPECT_EQ(Files("killed", 40), Files("straight", 40));
    auto processes = Start(2, Train("stopped", rounds));
    processes[0]->WaitForOutput(" 10/40");
    processes[1]->Signal(SIGTERM);
    const auto stopped = Wait(std::move(processes));
    for (const Result& r : stopped) EXPECT_EQ(r.exit_code, 128 + SIGTERM) << r;
    const models::TrainerState state = models::ReadTrainerState(Path("stopped/latest"));
    EXPECT_EQ(state.step % 5, 0);
    EXPECT_EQ(state.workers, 2);
    Run(2, "stopped", rounds);
    EXPECT_EQ(Files("stopped", 40), Files("straight", 40));
    EXPECT_EQ(Numbers("stopped"), Numbers("straight"));
  }
};

TEST_F(DiLoCo, ResumesToTheSameBits) { CheckResumes({}); }

// A worker's loss scale and range of norms are its own.
TEST_F(DiLoCo, ResumesInFp16WithASpikeGuard) {
  CheckResumes({"--train.precision=fp16", "--train.loss_scale_every=7", "--train.spike=3",
                "--dist.outer_dtype=bf16", "--train.recompute=block"});
}

// Without outer momentum the outer optimizer has no state.
TEST_F(DiLoCo, ResumesWithoutOuterMomentum) {
  CheckResumes({"--dist.outer_momentum=0", "--dist.outer_lr=1", "--optim.name=muon"});
}

TEST_F(DiLoCo, OtherWorkersGoOnOnlyIfAskedTo) {
  const Arguments rounds = {"--dist.outer_every=5", "--train.global_batch_size=12",
                            "--train.steps=20"};
  Run(2, "out", rounds);
  Arguments longer = rounds;
  longer.back() = "--train.steps=30";
  const std::string resume = "--checkpoint.resume=" + Checkpoint("out", 20);
  Arguments more = longer;
  more.push_back("--checkpoint.resume=" + Path("out"));
  const auto run = Wait(Start(3, Train("out", more)));
  EXPECT_EQ(run[0].exit_code, 0) << run[0];
  EXPECT_THAT(run[0].err, HasSubstr("has the optimizer states of 2 workers (dist.outer_every), and "
                                    "this run has 3: start as many as before, with --nproc=2"));
  KillAfterCheckpoint(Start(2, Train("killed", rounds)), "killed", 10);
  const auto refused = Wait(Start(3, Train("killed", rounds)));
  if (!PathExists(Checkpoint("killed", 20))) {
    EXPECT_EQ(refused[0].exit_code, 2) << refused[0];
    EXPECT_THAT(refused[0].err, HasSubstr("with --nproc=2"));
  }
  // Ranks that sum gradients go on from the weights and the first worker's state, and the other
  // way.
  Run(2, "sums", {"--train.global_batch_size=12", "--train.steps=30", resume});
  Run(2, "warm",
      {"--train.global_batch_size=12", "--train.steps=40", "--dist.outer_every=5",
       "--checkpoint.resume=" + Checkpoint("sums", 30)});
}

TEST_F(DiLoCo, TrainsAdapters) {
  Run(1, "base", {"--train.steps=10"});
  const Arguments adapters = {"--init_from=" + Path("base/latest"), "--lora.rank=2",
                              "--dist.outer_every=5", "--train.steps=10",
                              "--train.global_batch_size=4"};
  Run(2, "adapters", adapters);
  Run(2, "again", adapters);
  const std::string file = "/adapter_model.safetensors";
  EXPECT_EQ(ReadFile(Checkpoint("again", 10) + file), ReadFile(Checkpoint("adapters", 10) + file));
}

// One worker is SGD with momentum over rounds of steps.
TEST_F(DiLoCo, MayHaveOneWorker) {
  Run(1, "one", {"--dist.outer_every=5", "--train.steps=10"});
  EXPECT_TRUE(PathExists(Checkpoint("one", 10) + "/optimizer.outer.safetensors"));
}

// On GPUs a step's numbers are read while the next one is under way, also at the end of a round.
TEST_F(DiLoCo, RunsOnGpus) {
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(2);
  const Arguments rounds = {"--dist.outer_every=4", "--train.steps=8", "--train.eval_every=4",
                            "--checkpoint.every=4", "--train.log_every=100"};
  Arguments on_gpus = rounds;
  on_gpus.push_back(GpuOption());
  Run(2, "cpu", rounds);
  Run(2, "gpu", on_gpus);
  const auto cpu = Metrics("cpu"), gpu = Metrics("gpu");
  ASSERT_EQ(gpu.size(), cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    for (const char* key : {"loss", "grad_norm", "val_loss"}) {
      if (!cpu[i].contains(key)) continue;
      EXPECT_NEAR(gpu[i].at(key), cpu[i].at(key), 1e-4) << key << " of line " << i;
    }
  }
}

TEST_F(DiLoCo, SaysWhereRoundsEnd) {
  const auto results = Wait(Start(2, Train("out", {"--dist.outer_every=7", "--train.steps=40",
                                                   "--train.global_batch_size=8"})));
  for (const Result& r : results) {
    EXPECT_EQ(r.exit_code, 2) << r;
    EXPECT_THAT(r.err, AllOf(HasSubstr("train.steps = 40 (command line)"),
                             HasSubstr("use --train.steps=42 --train.eval_every=14 "
                                       "--checkpoint.every=14")));
  }
}

}  // namespace
}  // namespace lockstep
