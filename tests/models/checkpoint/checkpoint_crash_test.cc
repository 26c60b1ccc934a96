// Ranks that die while they save a checkpoint together.
#include <gmock/gmock-matchers.h>

#include <optional>
#include <set>

#include "core/io/fault.h"
#include "dist/world.h"
#include "tests/models/checkpoint/child.h"
#include "tests/models/checkpoint/saved_ranks.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

using test::Fork;
using test::InChild;
using test::Lived;
using ::testing::ElementsAre;

// Everything runs in children, since a process with other threads should not fork.
class CheckpointCrashTest : public SavedRanksTest {
 protected:
  // The step of the newest checkpoint, which is whole, and after which the next one is saved as if
  // nothing had happened. Removes the folder.
  static int64_t ExpectToGoOn(const Plan& plan, const std::string& out) {
    InChild([&] {
      const auto newest = CheckpointStore(out).FindNewest();
      ExpectStep(newest->path, newest->step, {1, 1});
      if (HasFailure()) _exit(1);
    });
    const int64_t newest = CheckpointStore(out).FindNewest()->step;
    InChild([&] { Save(plan, out, /*async=*/true, {30}); });
    EXPECT_EQ(CheckpointStore::Verify(JoinPath(out, "latest")).step, 30);
    for (const std::string& name : ListDirectory(JoinPath(out, "checkpoints"))) {
      EXPECT_TRUE(name.starts_with("step-")) << name;  // no leftovers
    }
    RemoveTree(out);
    return newest;
  }
};

// All ranks die at an operation of any of them.
TEST_F(CheckpointCrashTest, KillAtEveryOperation) {
  const Plan plan{2, 1};
  for (const std::string fault : {"kill@", "tear@"}) {
    std::set<int64_t> seen;
    bool completed = false;
    int at = 1;
    for (; !completed; ++at) {
      ASSERT_LT(at, 200);
      const std::string out = Path(StrCat(fault, at));
      InChild([&] { Save(plan, out, /*async=*/true, {10}); });
      completed = InChild([&] {
        FaultInjector injector(FaultPlan::Parse(StrCat(fault, at)));
        const ScopedFaultInjector scope(&injector);
        Save(plan, out, /*async=*/true, {20});
      });
      const int64_t newest = ExpectToGoOn(plan, out);
      seen.insert(newest);
      EXPECT_TRUE(newest == 20 || (newest == 10 && !completed)) << fault << at;
    }
    EXPECT_THAT(seen, ElementsAre(10, 20));
    EXPECT_GT(at, 30);
  }
}

// One of two processes dies at an operation of its own. The other commits nothing that lacks the
// dead one's part.
TEST_F(CheckpointCrashTest, KillOfOneRankAtEveryOperation) {
  if (test::kSanitized) GTEST_SKIP() << "some dozens of processes";
  const Plan plan{2, 1};
  for (const int victim : {0, 1}) {
    std::set<int64_t> seen;
    bool completed = false;
    int at = 1;
    for (; !completed; ++at) {
      ASSERT_LT(at, 100);
      const std::string out = Path(StrCat("one", victim, "-", at));
      InChild([&] { Save(plan, out, /*async=*/true, {10}); });
      std::vector<pid_t> children;
      for (int rank = 0; rank < plan.ranks(); ++rank) {
        children.push_back(Fork([&] {
          const dist::Rendezvous rendezvous{.rank = rank,
                                            .world_size = plan.ranks(),
                                            .secret = "of this test",
                                            .store_folder = out + ".ranks"};
          try {
            dist::World world(rendezvous);
            const auto all = world.Group();
            FaultInjector injector(FaultPlan::Parse(StrCat("kill@", at)));
            std::optional<ScopedFaultInjector> scope;
            if (rank == victim) scope.emplace(&injector);
            OnRank(all.get(), plan, out, {.async = true}, Saves(/*async=*/true, {20}));
            all->Barrier()->Synchronize();
          } catch (const Error&) {
            // The other rank has died.
          }
        }));
      }
      EXPECT_TRUE(Lived(children[1 - victim]));
      completed = Lived(children[victim]);
      RemoveTree(out + ".ranks");
      const int64_t newest = ExpectToGoOn(plan, out);
      seen.insert(newest);
      EXPECT_TRUE(newest == 20 || (newest == 10 && !completed))
          << "rank " << victim << " at " << at;
    }
    // Rank 0 commits, rank 1 ends with its part.
    EXPECT_THAT(seen, ElementsAre(10, 20));
    EXPECT_GT(at, 5);
  }
}

}  // namespace
}  // namespace lockstep::models
