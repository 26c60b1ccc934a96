// A long run's control traffic, played without waiting: messages, questions, agreement and pauses
// on the control plane, and groups, also of several axes of a mesh, that are made and destroyed.
// Memory, file descriptors and threads must be the same at the end as after the first hundredth.
//
// CI plays 5,000 rounds of 2 ranks. By hand (64 ranks need `ulimit -n 4096`):
//
//   bazel build //tests/dist:long_life_test
//   LONG_LIFE_ROUNDS=1000000 bazel-bin/tests/dist/long_life_test
//   LONG_LIFE_ROUNDS=100000 LONG_LIFE_RANKS=64 bazel-bin/tests/dist/long_life_test
#include <gmock/gmock-matchers.h>
#include <malloc.h>

#include <cstdio>
#include <cstdlib>

#include "dist/control/failure_board.h"
#include "dist/control/fold.h"
#include "dist/flight/flight_recorder.h"
#include "dist/groups/agreement.h"
#include "dist/groups/pause.h"
#include "tests/dist/worlds.h"
#include "tests/process_state.h"
#include "tests/sanitized.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

struct Sample {
  int64_t heap_bytes = 0;
  lockstep::test::ProcessState process;
};

class LongLife {
 public:
  LongLife(int ranks, int64_t rounds) : ranks_(ranks), rounds_(rounds) {}

  void Play() {
    EXPECT_THAT(InWorld(ranks_, [this](World& world) { PlayRank(world); }), testing::Each(""));
  }

  const Sample& early() const { return early_; }
  const Sample& late() const { return late_; }

 private:
  void PlayRank(World& world) {
    const int rank = world.rank();
    const std::shared_ptr<ControlPlane>& control = world.control();
    const auto group =
        world.Group({.name = "control",
                     .timeout = std::chrono::minutes(10),
                     .recorder = std::make_shared<FlightRecorder>(
                         testing::TempDir() + "/no such folder/flight", rank, ranks_)});
    Fold fold(*control, "long life", AllRanks(ranks_),
              [](const std::string& a, const std::string& b) { return a + b; });
    const int64_t barrier_every = ranks_ <= 8 ? 1 : 16, first = rounds_ / 100;
    for (int64_t i = 1; i <= rounds_; ++i) {
      EXPECT_EQ(fold.Run("x", [] { return true; }), std::string(ranks_, 'x'));
      if (i % barrier_every == 0) group->Barrier()->Synchronize();
      if (i % 50 == 0) CompareNotes(rank, i, *group, *control);
      if (i % 100 == 0) MakeAndDestroyGroup(i, *group);
      if (i % 100 == 50) MakeAndDestroyMesh(i, world);
      if (i % std::max<int64_t>(1, rounds_ / 10) == 0 || i == first) TakeSample(rank, i, *group);
    }
    group->Barrier()->Synchronize();
  }

  // As after a failure, and before an update.
  void CompareNotes(int rank, int64_t round, ProcessGroup& group, ControlPlane& control) {
    if (rank == round / 50 % ranks_) {
      const Pause pause(&group, "writing a checkpoint");
      const auto answers = control.Ask(AllRanks(ranks_), TopicOf("control/board"), "where",
                                       Clock::now() + seconds(60));
      EXPECT_THAT(answers.by_rank, testing::SizeIs(ranks_));
    }
    EXPECT_EQ(GatherTexts(group, StrCat("rank ", rank), 64)[0], "rank 0");
    group.CheckInStep();
  }

  // Names are new or reused.
  void MakeAndDestroyGroup(int64_t round, ProcessGroup& group) {
    const auto other =
        group.Duplicate(round % 200 == 0 ? StrCat("group ", round) : std::string("again"));
    const Tensor ones = Tensor::Full({10}, 1, DType::kF32);
    other->AllReduce(ones)->Synchronize();
    EXPECT_EQ(ones.data<float>()[9], static_cast<float>(ranks_));
  }

  // A group for each axis, and for both.
  void MakeAndDestroyMesh(int64_t round, World& world) {
    const int tp = ranks_ % 2 == 0 ? 2 : 1;
    const Mesh mesh({.dp = ranks_ / tp, .tp = tp}, world.rank(), ranks_);
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    for (const std::vector<std::string>& axes :
         {std::vector<std::string>{"dp"}, {"tp"}, {"dp", "tp"}}) {
      groups.push_back(world.Group(mesh, axes, {.name = "mesh"}));
      CheckEqual(*groups.back(), "the round", round);
    }
  }

  void TakeSample(int rank, int64_t round, ProcessGroup& group) {
    group.Barrier()->Synchronize();
    if (rank == 0) {
      const bool is_early = round == rounds_ / 100;
      const Sample now = Settled(is_early ? nullptr : &early_);
      std::printf("%9ld rounds, %6.1f s: %6ld KiB of heap, %s\n", round,
                  std::chrono::duration<double>(Clock::now() - begin_).count(),
                  now.heap_bytes >> 10, testing::PrintToString(now.process).c_str());
      std::fflush(stdout);
      (is_early ? early_ : late_) = now;
    }
    group.Barrier()->Synchronize();
  }

  // Joined threads and closed connections disappear with a small delay.
  Sample Settled(const Sample* not_above) {
    const auto deadline = Clock::now() + seconds(not_above == nullptr ? 1 : 20);
    Sample now;
    do {
      malloc_trim(0);
      now.heap_bytes = static_cast<int64_t>(mallinfo2().uordblks);
      now.process = lockstep::test::ProcessStateOf();
    } while (Clock::now() < deadline &&
             (not_above == nullptr || now.process.threads > not_above->process.threads ||
              now.process.descriptors > not_above->process.descriptors));
    return now;
  }

  const int ranks_;
  const int64_t rounds_;
  const Clock::time_point begin_ = Clock::now();
  Sample early_, late_;
};

TEST(LongLifeTest, NothingGrows) {
  const auto ranks = static_cast<int>(FromEnvironment("LONG_LIFE_RANKS", 2));
  const int64_t rounds =
      FromEnvironment("LONG_LIFE_ROUNDS", lockstep::test::kSanitized ? 1000 : 5000);
  LongLife life(ranks, rounds);
  life.Play();
  const Sample &early = life.early(), &late = life.late();
  EXPECT_EQ(late.process.descriptors, early.process.descriptors);
  EXPECT_EQ(late.process.threads, early.process.threads);
  if (lockstep::test::kSanitized) return;  // sanitizers keep freed memory for a while
  // The recorders fill up to the number of groups they keep, and short-lived threads leave memory
  // in the allocator's arenas and caches.
  EXPECT_LE(late.heap_bytes, early.heap_bytes + (256 << 10) + ranks * (96 << 10));
  EXPECT_LE(late.process.resident_bytes,
            early.process.resident_bytes + (4 << 20) + ranks * (128 << 10));
}

}  // namespace
}  // namespace lockstep::dist
