// Two ranks of train_gpt train for 200,000 steps of the smallest model, some minutes. The ranks'
// resident memory, descriptors and threads must be the same at the end as after the first
// hundredth. By hand, and in the soak test:
//
//   bazel test --test_output=streamed //tests:train_gpt_long_life_test
//   ... --test_env=LONG_LIFE_STEPS=1000000
#include <gmock/gmock-matchers.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "dist/control/socket.h"
#include "tests/process_state.h"
#include "tests/rank_runs.h"

namespace lockstep {
namespace {

using test::ProcessState;

constexpr int kRanks = 2;

struct Sample {
  int64_t step = 0;
  std::vector<ProcessState> ranks;
};

class LongLifeTest : public RankRuns {
 protected:
  LongLifeTest() {
    if (const char* const steps = std::getenv("LONG_LIFE_STEPS")) steps_ = std::atoll(steps);
  }

  void StartRanks() {
    const int port = dist::PortOf(dist::Listen("127.0.0.1", 0));
    for (int r = 0; r < kRanks; ++r) {
      auto place = Place(r, kRanks, "");
      place["MASTER_PORT"] = std::to_string(port);
      place["LOCKSTEP_SECRET"] = "of the test";
      processes_.push_back(std::make_unique<Subprocess>(
          Train("out", {"--train.steps=" + std::to_string(steps_), "--model.n_embd=8",
                        "--model.n_head=1", "--model.block_size=4", "--train.batch_size=1",
                        "--train.eval_every=0", "--checkpoint.every=0", "--dist.check_every=1000",
                        "--train.log_every=" + std::to_string(steps_ / 20),
                        "--train.sample_tokens=0", "--dist.heartbeat=120"}),
          place));
    }
  }

  static bool HasEnded(const Subprocess& process) {
    siginfo_t info = {};
    waitid(P_PID, static_cast<id_t>(process.pid()), &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid != 0;
  }

  // The last step in metrics.jsonl.
  int64_t Step() const {
    std::ifstream file(Path("out/metrics.jsonl"), std::ios::ate);
    const int64_t size = file ? static_cast<int64_t>(file.tellg()) : 0;
    file.seekg(std::max<int64_t>(0, size - 4096));
    std::string text(std::istreambuf_iterator<char>(file), {});
    const size_t at = text.rfind("{\"step\":", text.rfind('\n'));
    return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + 8);
  }

  Sample Take() const {
    Sample sample{.step = Step()};
    for (const auto& p : processes_) sample.ranks.push_back(test::ProcessStateOf(p->pid()));
    std::printf("step %7ld: %s; %s\n", sample.step, testing::PrintToString(sample.ranks[0]).c_str(),
                testing::PrintToString(sample.ranks[1]).c_str());
    std::fflush(stdout);
    return sample;
  }

  int64_t steps_ = 200'000;
  Processes processes_;
};

TEST_F(LongLifeTest, NothingGrowsWithTheSteps) {
  StartRanks();
  std::vector<Sample> samples;
  for (int64_t next = steps_ / 100; next < steps_;) {
    // A run that ends early never gets there.
    ASSERT_FALSE(HasEnded(*processes_[0]));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (Step() < next) continue;
    samples.push_back(Take());
    next += samples.size() == 1 ? steps_ / 10 - steps_ / 100 : steps_ / 10;
    if (next == steps_) next -= steps_ / 100;
  }
  for (const Result& r : Wait(std::move(processes_))) EXPECT_EQ(r.exit_code, 0) << r;
  const Sample &early = samples.front(), &late = samples.back();
  ASSERT_GT(late.step, early.step * 50);
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(late.ranks[r].descriptors, early.ranks[r].descriptors);
    EXPECT_EQ(late.ranks[r].threads, early.ranks[r].threads);
    // Memory that the allocator does not give back.
    EXPECT_LE(late.ranks[r].resident_bytes, early.ranks[r].resident_bytes + (4 << 20));
  }
}

}  // namespace
}  // namespace lockstep
