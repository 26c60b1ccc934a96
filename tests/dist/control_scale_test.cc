// The control plane of thousands of ranks, on one machine. CI plays 1,024 ranks; by hand, with the
// figures of PERFORMANCE.md (4,096 need some 9,000 descriptors: `ulimit -n 20000`):
//
//   bazel build //tests/dist:control_scale_test
//   CONTROL_RANKS=64,256,1024,4096 bazel-bin/tests/dist/control_scale_test
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "dist/control/fold.h"
#include "tests/dist/crowd.h"
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

std::vector<int> Sizes() {
  const char* const text = std::getenv("CONTROL_RANKS");
  std::istringstream in(text != nullptr ? text : lockstep::test::kSanitized ? "256" : "1024");
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
  for (const int size : Sizes()) {
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

}  // namespace
}  // namespace lockstep::dist
