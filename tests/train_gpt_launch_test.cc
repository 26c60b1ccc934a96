// train_gpt by the launcher.
#include <gmock/gmock.h>
#include <signal.h>

#include "tests/rank_runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class LaunchedRuns : public RankRuns {};

// --nproc, and the launcher: the same run as by hand.
TEST_F(LaunchedRuns, AreTheSameAsByHand) {
  Run(2, "by_hand", {"--train.steps=10"});
  Arguments self = Train("self", {"--train.steps=10"});
  self.push_back("--nproc=2");
  Arguments launched = {"tools/launch", "--nproc=2", "--"};
  for (const std::string& a : Train("launched", {"--train.steps=10"})) launched.push_back(a);
  for (const auto& [out, arguments] : {std::pair("self", self), std::pair("launched", launched)}) {
    const Result r = RunProgram(arguments);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_THAT(r.out, AllOf(HasSubstr("[0] step 10/10 | loss"), Not(HasSubstr("[1]"))));
    EXPECT_EQ(Bytes(out, 10), Bytes("by_hand", 10)) << out;
  }
}

// The launcher starts all again from the newest checkpoint, to the same end.
TEST_F(LaunchedRuns, GoOnToTheSameWeightsAfterAKill) {
  const Arguments options = {"--train.steps=200", "--dist.reduction=ordered",
                             "--train.global_batch_size=8"};
  Run(1, "straight", options);
  Arguments arguments = {"tools/launch",
                         "--nproc=2",
                         "--max_restarts=1",
                         "--",
                         "bash",
                         "-c",
                         "echo process $$; exec \"$@\"",
                         "rank"};
  for (const std::string& a : Train("out", options)) arguments.push_back(a);
  Subprocess launch(arguments);
  launch.WaitForOutput(" 25/200");
  const std::string name = "[1] process ";
  const size_t at = launch.output().find(name);
  ASSERT_NE(at, std::string::npos);
  kill(std::stoi(launch.output().substr(at + name.size())), SIGKILL);
  const Result r = launch.Wait();
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.err, AllOf(HasSubstr("the first failure: rank 1 was killed by signal 9 (Killed)"),
                           HasSubstr("starting all ranks again (1 of at most 1 times)")));
  EXPECT_THAT(r.out, HasSubstr("resuming from"));
  EXPECT_EQ(Bytes("out", 200), Bytes("straight", 200));
}

}  // namespace
}  // namespace lockstep
