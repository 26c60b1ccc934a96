// The control plane of thousands of ranks, on one machine, and the groups of hundreds. CI plays
// 1,024 ranks, and the groups of 128; by hand, with the figures of PERFORMANCE.md (4,096 need some
// 9,000 descriptors, `ulimit -n 20000`; with groups, of which each connects a rank to 56 others,
// 260,000 and 25,000 threads):
//
//   bazel build //tests/dist:control_scale_test
//   CONTROL_RANKS=64,256,1024,4096 bazel-bin/tests/dist/control_scale_test --gtest_filter=*Agree*
//   GROUP_RANKS=64,256,1024,4096 bazel-bin/tests/dist/control_scale_test --gtest_filter=*Few*
#include <gmock/gmock-matchers.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>

#include "dist/control/fold.h"
#include "dist/groups/agreement.h"
#include "dist/groups/host_group.h"
#include "dist/groups/tcp_transport.h"
#include "tests/dist/counting_transport.h"
#include "tests/dist/crowd.h"
#include "tests/dist/worlds.h"
#include "tests/process_state.h"
#include "tests/sanitized.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<int> Sizes(const char* variable, const char* usual, const char* sanitized) {
  const char* const text = std::getenv(variable);
  std::istringstream in(text != nullptr ? text : lockstep::test::kSanitized ? sanitized : usual);
  std::vector<int> sizes;
  for (std::string size; std::getline(in, size, ',');) sizes.push_back(std::stoi(size));
  return sizes;
}

class Barriers {
 public:
  explicit Barriers(int size) : crowd_(size, seconds(20)) {}

  test::Crowd& crowd() { return crowd_; }

  void MakeFolds() {
    for (int r = 0; r < crowd_.size(); ++r) {
      folds_.push_back(std::make_unique<Fold>(
          crowd_.plane(r), "world", AllRanks(crowd_.size()),
          [](const std::string&, const std::string&) { return std::string(); }));
    }
  }

  // Returns how long it took, in seconds.
  double Barrier() {
    int left = crowd_.size();
    std::mutex mutex;
    std::condition_variable done;
    const auto begin = Clock::now();
    for (const auto& fold : folds_) {
      fold->Bring("", [&](const std::string&) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (--left == 0) done.notify_all();
      });
    }
    std::unique_lock<std::mutex> lock(mutex);
    done.wait(lock, [&] { return left == 0; });
    return Since(begin);
  }

  void ForgetFolds() { folds_.clear(); }

 private:
  test::Crowd crowd_;
  std::vector<std::unique_ptr<Fold>> folds_;
};

TEST(ControlScaleTest, ThousandsOfRanksMeetAgreeAndLearnOfAFailure) {
  for (const int size : Sizes("CONTROL_RANKS", "1024", "256")) {
    const auto memory = lockstep::test::ProcessStateOf().resident_bytes;
    const auto begin = Clock::now();
    Barriers world(size);
    ASSERT_TRUE(world.crowd().WaitForOpen(seconds(60)));
    const double meeting = Since(begin);
    EXPECT_THAT(world.crowd().refusals(), testing::Each(""));
    EXPECT_LE(meeting, 20);

    world.MakeFolds();
    std::vector<double> barriers;
    const auto before = world.crowd().plane(0).traffic();
    for (int i = 0; i < 21; ++i) barriers.push_back(world.Barrier());
    std::sort(barriers.begin(), barriers.end());
    const auto after = world.crowd().plane(0).traffic();
    const auto children = std::ssize(RankTree(size).Children(0));
    EXPECT_EQ(after.received - before.received, 21 * children);
    EXPECT_EQ(after.sent - before.sent, 21 * children);
    EXPECT_LE(barriers[10], 0.25);

    const double used = lockstep::test::ProcessStateOf().cpu_seconds;
    const auto idle = Clock::now();
    std::this_thread::sleep_for(seconds(4));
    const auto state = lockstep::test::ProcessStateOf();
    const double beats = (state.cpu_seconds - used) / Since(idle);
    if (!lockstep::test::kSanitized) {
      EXPECT_LE(beats, 0.1);
    }
    const auto bytes = (state.resident_bytes - memory) / size;

    // The one whose end is furthest from most.
    world.ForgetFolds();
    const int victim = size - 1;
    const auto death = Clock::now();
    world.crowd().Kill(victim);
    ASSERT_TRUE(world.crowd().WaitForFailures(size - 1, seconds(20)));
    const double spread = Since(death);
    for (const int r : {0, size / 2, size - 2}) {
      EXPECT_THAT(world.crowd().plane(r).failure()->culprits, testing::ElementsAre(victim));
    }
    std::printf(
        "%5d ranks meet in %.2f s; a barrier takes %.2f ms (%ld messages to rank 0); beats use "
        "%.1f%% of a core; a failure reaches all in %.1f ms; %ld bytes a rank, both ends\n",
        size, meeting, 1e3 * barriers[10], static_cast<long>(children), 100 * beats, 1e3 * spread,
        static_cast<long>(bytes));
  }
}

// The ranks of a world, with threads and control planes of their own.
class Groups {
 public:
  explicit Groups(int size) : size_(size), meet_(size) {}

  void Play() {
    EXPECT_THAT(InWorld(size_, [this](World& world) { PlayRank(world); },
                        {.timeout = std::chrono::minutes(5), .heartbeat = milliseconds(0)}),
                testing::Each(""));
    const auto each = [this](int64_t n) { return static_cast<double>(n) / size_; };
    std::printf(
        "%5d ranks: three groups of a mesh are made in %.1f ms, with %.1f descriptors and %.1f "
        "threads a rank; a barrier takes %.2f ms, and %ld messages and %.1f connections a rank; "
        "gathering two numbers %.2f ms\n",
        size_, 1e3 * making_, each(made_.descriptors - before_.descriptors),
        each(made_.threads - before_.threads), 1e3 * barrier_,
        static_cast<long>(MessagesOfACheck(size_)), each(used_.descriptors - made_.descriptors) - 1,
        1e3 * gather_);
    EXPECT_EQ(made_.threads - before_.threads, 3 * size_);
    EXPECT_EQ(made_.descriptors - before_.descriptors, 3 * size_);  // events
    EXPECT_LE(used_.descriptors - made_.descriptors,
              size_ * (1 + std::min<int64_t>(size_ - 1, 2 * MessagesOfACheck(size_))));
  }

 private:
  void PlayRank(World& world) {
    const bool tells = world.rank() == 0;
    Measure(tells, &before_);
    const auto traffic = world.control()->traffic();
    const auto begin = Clock::now();
    const Mesh mesh({.dp = size_ / 8, .tp = 8}, world.rank(), size_);
    std::vector<std::shared_ptr<ProcessGroup>> groups = {world.Group({.name = "all"})};
    for (const char* const axis : {"dp", "tp"}) groups.push_back(world.Group(mesh, {axis}));
    if (tells) making_ = Since(begin);
    const auto neighbours = std::ssize(RankTree(size_).Children(world.rank())) + 1;
    EXPECT_LE(world.control()->traffic().sent - traffic.sent, 3 * neighbours);
    Measure(tells, &made_);
    auto owned = std::make_unique<CountingTransport>(
        MakeTcpTransport(world.control(), "counted", AllRanks(size_)));
    CountingTransport& counts = *owned;
    const auto group = MakeHostGroup(std::move(owned), world.control(), {.name = "counted"});
    const int64_t messages = MessagesOfACheck(size_);
    auto sent = [&, last = int64_t{0}]() mutable {
      return counts.messages - std::exchange(last, counts.messages);
    };
    group->Barrier()->Synchronize();
    EXPECT_EQ(sent(), messages);
    group->CheckInStep();
    EXPECT_EQ(sent(), messages);
    ExpectGathered(*group);
    EXPECT_LE(sent(), 2 * (messages + 2 * messages));
    EXPECT_LE(std::ssize(counts.peers), 2 * messages);
    const double barrier = Median([&] { group->Barrier()->Synchronize(); });
    const std::vector<double> mine = {1, 2};
    const double gather = Median([&] { GatherValues(*group, std::span<const double>(mine)); });
    if (tells) std::tie(barrier_, gather_) = std::pair(barrier, gather);
    Measure(tells, &used_);
    // The groups that moved nothing are left as they are.
  }

  static void ExpectGathered(ProcessGroup& group) {
    const std::vector<int64_t> mine = {group.rank(), 7};
    const auto rows = GatherValues(group, std::span<const int64_t>(mine));
    const auto texts = GatherTexts(group, StrCat("rank ", group.rank()), 32);
    for (size_t r = 0; r < rows.size(); ++r) {
      ASSERT_THAT(rows[r], testing::ElementsAre(static_cast<int64_t>(r), 7));
      ASSERT_EQ(texts[r], StrCat("rank ", r));
    }
  }

  static double Median(const std::function<void()>& f) {
    std::vector<double> times;
    for (int i = 0; i < 11; ++i) {
      const auto begin = Clock::now();
      f();
      times.push_back(Since(begin));
    }
    std::sort(times.begin(), times.end());
    return times[5];
  }

  // What this process has while all ranks wait, once other connections have ended.
  void Measure(bool measures, lockstep::test::ProcessState* state) {
    meet_.arrive_and_wait();
    if (measures) {
      std::this_thread::sleep_for(milliseconds(1200));
      *state = lockstep::test::ProcessStateOf();
    }
    meet_.arrive_and_wait();
  }

  const int size_;
  std::barrier<> meet_;
  lockstep::test::ProcessState before_, made_, used_;
  double making_ = 0, barrier_ = 0, gather_ = 0;
};

TEST(ControlScaleTest, ARankOfManyTalksToFew) {
  for (const int size : Sizes("GROUP_RANKS", "128", "40")) Groups(size).Play();
}

}  // namespace
}  // namespace lockstep::dist
