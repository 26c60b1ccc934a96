// What train_gpt's ranks report when one of them dies, diverges or was started differently.
#include <gmock/gmock-matchers.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <regex>
#include <thread>

#include "core/cuda/device.h"
#include "core/error.h"
#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "tests/gpu_test.h"
#include "tests/process_memory.h"
#include "tests/rank_runs.h"
#include "tests/sanitized.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// The limit from a rank's death to the others' exit. dist.timeout is two minutes.
constexpr double kSecondsToHear = test::kSanitized ? 40 : 10;

class RankFailures : public RankRuns {
 protected:
  // Starts ranks whose weights do not change, and stops `rank` after some steps.
  Processes StartAndStop(int ranks, int rank, int check_every) {
    auto processes =
        Start(ranks, Train("out", {"--train.steps=100000", "--optim.lr=1e-30", "--optim.min_lr=0",
                                   "--dist.check_every=" + std::to_string(check_every),
                                   "--checkpoint.save_initial=true", "--train.log_every=1",
                                   "--train.eval_every=0", "--checkpoint.every=0"}));
    processes[0]->WaitForOutput(" 7/100000");
    processes[rank]->Stop();
    return processes;
  }

  // The bytes of some weights in memory.
  std::string Weights() const {
    const auto file = SafetensorsFile::Open(Checkpoint("out", 0) + "/model.safetensors");
    const auto& bytes = file.Get(kWeights).bytes;
    return {reinterpret_cast<const char*>(bytes.data()), 64};
  }

  static constexpr char kWeights[] = "wte.weight";
};

// Promise 9: one bit of one weight, in the memory of one process.
TEST_F(RankFailures, AFlippedBitIsFoundWithinCheckEverySteps) {
  auto processes = StartAndStop(3, 1, /*check_every=*/5);
  std::string changed = Weights();
  changed[8] = static_cast<char>(changed[8] ^ 1);
  const auto times = ReplaceInMemory(processes[1]->pid(), Weights(), changed);
  if (!times) GTEST_SKIP() << "other processes' memory cannot be written here";
  ASSERT_GT(*times, 0);
  processes[1]->Signal(SIGCONT);
  for (const Result& r : Wait(std::move(processes))) {
    EXPECT_EQ(r.exit_code, 1);
    EXPECT_THAT(r.err,
                HasSubstr(StrCat("'", kWeights, "' of rank 1 differs from that of ranks 0 and 2")));
    // Found at the first comparison after it; step 7 was complete.
    std::smatch step;
    ASSERT_TRUE(std::regex_search(r.err, step, std::regex("the weights after step (\\d+)")));
    EXPECT_GE(std::stoi(step[1]), 10);
    EXPECT_EQ(std::stoi(step[1]) % 5, 0);
  }
}

// Promise 18: NaN on one rank, which the sum spreads to all.
TEST_F(RankFailures, NanOnOneRankStopsAllBeforeTheUpdateAndIsNamed) {
  auto processes = StartAndStop(3, 1, /*check_every=*/0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::string changed = Weights();
  std::memcpy(changed.data() + 8, &nan, sizeof(nan));
  const auto times = ReplaceInMemory(processes[1]->pid(), Weights(), changed);
  if (!times) GTEST_SKIP() << "other processes' memory cannot be written here";
  ASSERT_GT(*times, 0);
  processes[1]->Signal(SIGCONT);
  for (const Result& r : Wait(std::move(processes))) {
    EXPECT_EQ(r.exit_code, 1);
    // The rank was stopped before or after it used that weight for its loss.
    EXPECT_THAT(r.err,
                AllOf(AnyOf(HasSubstr("the loss is nan"), HasSubstr("is not finite")),
                      HasSubstr("first on rank 1 ('"), HasSubstr("the update was not made")));
  }
}

// Promise 22: the records say which rank was at fault, in which call, and for which bucket.
void ExpectTheFlightToName(const std::string& out, const std::string& words) {
  const Result r = RunProgram({"tools/flight", out});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, testing::ContainsRegex("verdict: rank[^\n]*" + words)) << r.out;
  EXPECT_THAT(r.out, AllOf(HasSubstr("last calls of group 'gradients'"),
                           testing::ContainsRegex("of bucket [0-9]+ \\('")));
}

// Promise 1, for training processes: kill -9.
void ExpectTheKilledRankIsNamed(const std::vector<std::unique_ptr<Subprocess>>& processes) {
  processes[0]->WaitForOutput(" 5/100000");
  processes[2]->Signal(SIGKILL);
  const auto begin = Clock::now();
  std::vector<Result> results;
  for (const auto& p : processes) results.push_back(p->Wait());
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), kSecondsToHear);
  EXPECT_EQ(results[2].signal, SIGKILL);
  for (const int r : {0, 1}) {
    EXPECT_EQ(results[r].exit_code, 1);
    EXPECT_THAT(results[r].err, HasSubstr("rank 2"));
  }
}

TEST_F(RankFailures, AKilledRankIsNamed) {
  ExpectTheKilledRankIsNamed(Start(3, Train("out", {"--train.steps=100000"})));
  ExpectTheFlightToName(Path("out"), "rank 2 is gone");
}

// Promises 2 and 3: SIGSTOP. dist.timeout is two minutes.
TEST_F(RankFailures, AStoppedRankIsNamedWithinTheHeartbeatLimit) {
  auto processes = Start(3, Train("out", {"--train.steps=100000", "--dist.heartbeat=3"}),
                         /*over_tcp=*/true);
  processes[0]->WaitForOutput(" 5/100000");
  processes[1]->Stop();
  for (const int r : {0, 2}) {
    const Result result = processes[r]->Wait();
    EXPECT_EQ(result.exit_code, 1);
    // The store reports silence before the limit, so that all have learned of it by then.
    EXPECT_THAT(result.err, HasSubstr("rank 1 is stalled: its process has shown no sign of life "
                                      "for 2 s, with a heartbeat limit of 3 s"));
  }
  ExpectTheFlightToName(Path("out"), "rank 1 is stalled");
}

TEST_F(RankFailures, ARankThatContinuesBeforeTheLimitChangesNothing) {
  const Arguments options = {"--train.steps=400", "--train.log_every=1"};
  Run(3, "straight", options);
  auto processes = Start(3, Train("out", options), /*over_tcp=*/true);
  processes[0]->WaitForOutput(" 20/400");
  processes[1]->Stop();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  processes[1]->Signal(SIGCONT);
  for (const Result& r : Wait(std::move(processes))) EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(Bytes("out", 400), Bytes("straight", 400));
}

// Promise 14: an unfinished checkpoint is never used, whichever rank dies meanwhile, whether rank 0
// writes alone or each its part.
TEST_F(RankFailures, ASaveThatARanksDeathInterruptsIsNeverChosen) {
  const Arguments options = {
      "--train.steps=60",     "--dist.reduction=ordered", "--train.global_batch_size=8",
      "--checkpoint.every=1", "--train.log_every=1",      "--checkpoint.keep=3"};
  Run(1, "straight", options);
  for (const std::string shard : {"none", "full"}) {
    Arguments sharded = options;
    sharded.push_back("--parallel.shard=" + shard);
    for (const int victim : {0, 1}) {
      const std::string out = shard + std::to_string(victim);
      for (const char* const step : {" 7/60", " 23/60", " 41/60"}) {
        auto processes = Start(2, Train(out, sharded));
        processes[0]->WaitForOutput(step);
        processes[victim]->Signal(SIGKILL);
        Wait(std::move(processes));
      }
      Run(2, out, sharded);
      EXPECT_EQ(Bytes(out, 60), Bytes("straight", 60)) << out;
    }
  }
}

// Through NCCL's asynchronous errors and abort.
TEST_F(RankFailures, AKilledRankIsNamedOnGpus) {
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(3);
  ExpectTheKilledRankIsNamed(Start(3, Train("out", {"--train.steps=100000", GpuOption()})));
}

// A rank that was started differently would make the others hang, or train something else.
TEST_F(RankFailures, RanksWithOtherOptionsAreRefusedAtOnce) {
  const auto all = Train("out", {"--train.steps=10"});
  const auto other = Train(
      "elsewhere", {"--train.steps=10", "--optim.lr=0.5", "--threads=2", "--train.eval_every=3"});
  for (const Result& r : Wait(Start({all, all, other}))) {
    EXPECT_EQ(r.exit_code, 2);
    EXPECT_THAT(r.err, AllOf(HasSubstr("rank 2 was started with different options from rank 0"),
                             HasSubstr("optim.lr: "), HasSubstr(" -> 0.5"),
                             HasSubstr("train.eval_every: 10 -> 3")));
    EXPECT_THAT(r.err, testing::Not(testing::AnyOf(HasSubstr("threads"), HasSubstr("out_dir"))))
        << "machines may differ in these";
  }
  EXPECT_FALSE(PathExists(Path("out")));
}

TEST_F(RankFailures, AllRefuseWhatTheFirstRefuses) {
  Run(2, "out", {"--train.steps=10"});
  for (const Result& r : Wait(Start(2, Train("out", {"--train.steps=10"})))) {
    EXPECT_EQ(r.exit_code, 2);
    EXPECT_THAT(r.err, HasSubstr("holds a finished run"));
  }
  for (const Result& r : Wait(Start(4, Train("split", {"--train.steps=10", "--train.batch_size=4",
                                                       "--train.global_batch_size=12"})))) {
    EXPECT_EQ(r.exit_code, 2);
    EXPECT_THAT(r.err, HasSubstr("use train.global_batch_size = 16, or train.batch_size = 3, "
                                 "or at most 3 ranks"));
  }
  for (const Result& r : Wait(Start(2, Train("x", {"--dist.backend=nccl", "--device=cpu"})))) {
    EXPECT_THAT(r.err, HasSubstr("use dist.backend = tcp"));
  }
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(1);
  for (const Result& r : Wait(Start(2, Train("x", {GpuOption() + ":0"})))) {
    EXPECT_THAT(r.err, HasSubstr("one device for 2 ranks"));
  }
}

// As on machines whose disks hold different things at the same path.
TEST_F(RankFailures, RanksThatStartFromOtherWeightsAreRefused) {
  const auto options = [](const Arguments& more) {
    Arguments all = {"--model.n_layer=2", "--model.tie_embeddings=false", "--model.vocab_size=128",
                     "--train.global_batch_size=8", "--train.steps=10"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  Run(1, "one", options({"--seed=1"}));
  Run(1, "other", options({"--seed=2"}));
  const auto from = [&](const std::string& name, const std::string& plan) {
    return Train("out", options({"--init_from=" + Checkpoint(name, 10), plan}));
  };
  for (const bool listed : {true, false}) {  // another program's folders have no list of files
    for (const std::string plan : {"--parallel.tp=2", "--parallel.pp=2", "--parallel.shard=full",
                                   "--dist.reduction=ordered"}) {
      for (const Result& r : Wait(Start({from("one", plan), from("other", plan)}))) {
        EXPECT_EQ(r.exit_code, 1) << plan;
        EXPECT_THAT(r.err, AllOf(HasSubstr("the hash of the checkpoint or folder to start from is"),
                                 HasSubstr("on rank 0"), HasSubstr("on rank 1")))
            << plan;
      }
      EXPECT_FALSE(PathExists(Path("out/metrics.jsonl"))) << plan;
    }
    if (!listed) continue;
    for (const std::string name : {"one", "other"}) RemoveTree(Checkpoint(name, 10) + "/DONE");
  }
}

// As on machines of which one lacks a file.
TEST_F(RankFailures, AllNameWhatOneRankCannotOpen) {
  const auto here = Train("out", {"--train.steps=10"});
  const auto missing = Train("out", {"--train.steps=10", "--data.path=" + Path("missing.txt")});
  for (const int rank : {0, 1}) {
    std::vector<Arguments> all = {here, here};
    all[static_cast<size_t>(rank)] = missing;
    const auto results = Wait(Start(all));
    for (size_t r = 0; r < results.size(); ++r) {
      EXPECT_EQ(results[r].exit_code, 2);
      EXPECT_THAT(results[r].err,
                  AllOf(HasSubstr("missing.txt"), testing::Not(HasSubstr("gave up"))));
      const bool says_who = results[r].err.find(StrCat("rank ", rank, ": ")) != std::string::npos;
      EXPECT_EQ(says_who, static_cast<int>(r) != rank) << results[r].err;
    }
  }
}

TEST_F(RankFailures, AMissingRankIsNamedAfterTheTimeout) {
  Subprocess alone(Train("out", {"--dist.timeout=1"}), Place(0, 2, Path("meeting")));
  const Result result = alone.Wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("rank 1"));
}

}  // namespace
}  // namespace lockstep
