// train_gpt under launchers on two machines (here network namespaces) of two ranks each:
// reliability promise 4, and restarts of all machines.
#include <gmock/gmock-matchers.h>

#include "core/io/file.h"
#include "tests/rank_runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TwoNodes : public RankRuns {
 protected:
  // Runs the script and, to compare, an undisturbed run. False if it cannot create namespaces.
  bool Play(const std::string& mode) {
    const Arguments options = {"--train.steps=400", "--dist.reduction=ordered",
                               "--train.global_batch_size=8", "--dist.heartbeat=4",
                               "--train.log_every=1", "--checkpoint.every=20",
                               "--train.eval_every=100",
                               // That of step 20 is complete when step 25 is told.
                               "--checkpoint.async=false"};
    Arguments command = {"tests/dist/launch/two_nodes.sh", mode, Path(""), "tools/launch"};
    for (const std::string& a : Train("out", options)) command.push_back(a);
    const Result r = RunProgram(command);
    if (r.exit_code == 77) {
      reason_ = r.err;
      return false;
    }
    EXPECT_EQ(r.exit_code, 0) << r.err;
    Run(1, "straight", options);
    return true;
  }
  std::string Log(const std::string& name, int node) const {
    return ReadFile(Path(name + "-" + std::to_string(node) + ".log"));
  }
  int Code(const std::string& name, int node) const {
    return std::stoi(ReadFile(Path(name + "-" + std::to_string(node) + ".code")));
  }

  std::string reason_;
};

TEST_F(TwoNodes, ACutWireEndsBothSidesAndARestartResumes) {
  if (!Play("cut")) GTEST_SKIP() << reason_;
  for (const int node : {0, 1}) EXPECT_EQ(Code("cut", node), 1);
  // Each side blames the other.
  EXPECT_THAT(Log("cut", 0),
              testing::ContainsRegex("\\[0\\] train_gpt: .*rank [23] is stalled: its process has "
                                     "shown no sign of life for 2.668 s"));
  EXPECT_THAT(Log("cut", 1), testing::ContainsRegex("\\[2\\] train_gpt: .*rank 0 is stalled"));
  const Result verdict = RunProgram({"tools/flight", Path("out")});
  EXPECT_EQ(verdict.exit_code, 0) << verdict.err;
  EXPECT_THAT(verdict.out, AllOf(HasSubstr("records of 4 of 4 ranks"), HasSubstr("cut off")));
  // The second run continues from the first one's newest checkpoint.
  for (const int node : {0, 1}) EXPECT_EQ(Code("resumed", node), 0) << Log("resumed", node);
  EXPECT_THAT(Log("resumed", 0), HasSubstr("resuming from"));
  EXPECT_EQ(Bytes("out", 400), Bytes("straight", 400));
}

// The launchers know nothing of each other: one's ranks may restart before the other's have ended,
// and must not join a store that is about to end.
TEST_F(TwoNodes, AKilledRankRestartsAll) {
  if (!Play("kill")) GTEST_SKIP() << reason_;
  for (const int node : {0, 1}) {
    EXPECT_EQ(Code("kill", node), 0) << Log("kill", node);
    EXPECT_THAT(Log("kill", node), AllOf(HasSubstr("restarting all ranks (restart 1 of at most 3"),
                                         Not(HasSubstr("(2 of at most 3"))));
  }
  EXPECT_THAT(Log("kill", 1), HasSubstr("the first failure: rank 3 was killed by signal 9"));
  EXPECT_THAT(Log("kill", 0), HasSubstr("rank 3 is gone"));
  EXPECT_EQ(Bytes("out", 400), Bytes("straight", 400));
}

}  // namespace
}  // namespace lockstep
