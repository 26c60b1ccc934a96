// train_gpt under the launcher.
#include <gmock/gmock-matchers.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/io/file.h"
#include "tests/rank_runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class LaunchedRuns : public RankRuns {};

// --nproc and the launcher give the same run as ranks started by hand.
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

TEST_F(LaunchedRuns, PointToTheLauncherForItsOptions) {
  Arguments arguments = Train("out", {"--nproc=2", "--max-restarts=1"});
  const Result r = RunProgram(arguments);
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_EQ(r.err,
            "train_gpt: --max-restarts=1 is an option of the launcher: launch --nproc=2 "
            "--max-restarts=1 -- train_gpt ...\n");
}

// The arguments of the commands of a page that train with several processes. An indented line that
// ends with a backslash goes on in the next one.
std::vector<std::vector<std::string>> CommandsOfRanks(const std::string& page) {
  std::vector<std::vector<std::string>> commands;
  const std::string begin = "    bazel run -c opt //models:train_gpt -- ";
  std::string text = ReadFile(page);
  for (size_t at; (at = text.find(" \\\n")) != std::string::npos;) text.replace(at, 3, "");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(begin) || line.find("--nproc=") == std::string::npos) continue;
    std::istringstream words(line.substr(begin.size()));
    commands.emplace_back(std::istream_iterator<std::string>(words),
                          std::istream_iterator<std::string>());
  }
  return commands;
}

TEST_F(LaunchedRuns, ThePagesCommandsTrain) {
  int played = 0;
  for (const std::string page : {"README.md", "models/train/README.md"}) {
    for (Arguments arguments : CommandsOfRanks(page)) {
      std::string command;
      for (const std::string& a : arguments) command += a + " ";
      arguments.insert(arguments.begin(), "models/train_gpt");
      arguments.push_back("--dry_run");
      const Result r = RunProgram(arguments);
      EXPECT_EQ(r.exit_code, 0) << page << ": " << command << r.err;
      ++played;
    }
  }
  EXPECT_GE(played, 6);
}

// Promise 21: a checkpoint on SIGTERM.
TEST_F(LaunchedRuns, WriteACheckpointWhenTheLauncherIsTerminated) {
  Arguments arguments = {"tools/launch", "--nproc=2", "--"};
  for (const std::string& a : Train("out", {"--train.steps=100000", "--checkpoint.every=0"}))
    arguments.push_back(a);
  Subprocess launch(arguments);
  launch.WaitForOutput(" 5/100000");
  launch.Signal(SIGTERM);
  const Result r = launch.Wait();
  EXPECT_EQ(r.exit_code, 128 + SIGTERM) << r.err;
  EXPECT_THAT(r.out, HasSubstr("checkpoint saved"));
  EXPECT_TRUE(PathExists(Path("out/latest/DONE")));
}

TEST_F(LaunchedRuns, SayHowToContinue) {
  Arguments arguments = Train("out", {"--train.steps=100000", "--checkpoint.every=0"});
  arguments.push_back("--nproc=2");
  std::string shown;
  for (const char* const wait : {" 5/100000", " 25/100000"}) {
    Subprocess run(arguments);
    run.WaitForOutput(wait);
    run.Signal(SIGTERM);
    const Result r = run.Wait();
    ASSERT_EQ(r.exit_code, 128 + SIGTERM) << r.out << r.err;
    const size_t at = r.out.find("run the same command again, or:\n[0]   ");
    ASSERT_NE(at, std::string::npos) << r.out;
    std::istringstream command(r.out.substr(r.out.find("]   ", at) + 4));
    std::getline(command, shown);
    std::istringstream words(shown);
    arguments.clear();
    for (std::string word; words >> word;) arguments.push_back(word);
    EXPECT_EQ(arguments.back(), "--nproc=2");
    EXPECT_EQ(r.out.find("resuming from") != std::string::npos, wait[1] == '2');
    arguments[0] = "models/train_gpt";  // relative to the runfiles
  }
}

// As after Ctrl-Z, or with a terminal that is gone: rank 0 waits for its output to be read.
TEST_F(LaunchedRuns, WaitForALauncherThatIsStopped) {
  Arguments arguments = {"tools/launch", "--nproc=2", "--"};
  for (const std::string& a :
       Train("out", {"--train.steps=2000", "--train.log_every=1", "--dist.timeout=2",
                     "--train.eval_every=0", "--train.sample_every=0", "--checkpoint.every=0"}))
    arguments.push_back(a);
  Subprocess launch(arguments);
  launch.WaitForOutput(" 5/2000");
  launch.Stop();
  std::this_thread::sleep_for(std::chrono::seconds(8));
  launch.Signal(SIGCONT);
  const Result r = launch.Wait();
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("[0] step 2000/2000"));
}

// Ctrl-Z, docker pause: the time for which all were stopped does not count.
TEST_F(LaunchedRuns, GoOnWhereTheyWereStoppedAsAWhole) {
  Arguments arguments = {"models/train_gpt", "--nproc=3"};
  for (const std::string& a :
       Train("out", {"--train.steps=3000", "--train.log_every=1", "--dist.timeout=5",
                     "--train.eval_every=0", "--train.sample_every=0", "--checkpoint.every=0"})) {
    if (a != "models/train_gpt") arguments.push_back(a);
  }
  Subprocess launch(arguments);
  launch.WaitForOutput(" 5/3000");
  std::vector<pid_t> all = {launch.pid()};
  std::ifstream children(StrCat("/proc/", launch.pid(), "/task/", launch.pid(), "/children"));
  for (pid_t pid; children >> pid;) all.push_back(pid);
  ASSERT_EQ(all.size(), 4u);
  for (const pid_t pid : all) kill(pid, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(8));
  for (const pid_t pid : all) kill(pid, SIGCONT);
  const Result r = launch.Wait();
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("[0] step 3000/3000"));
}

// What cannot be trained is refused only once; a run that a rank's death found finished is not.
TEST_F(LaunchedRuns, RestartsOnlyWhatAnotherStartMayMend) {
  const auto launch = [](const std::string& script, const Arguments& train) {
    Arguments all = {"tools/launch", "--nproc=2", "--max_restarts=2", "--", "bash", "-c",
                     script,         "rank"};
    all.insert(all.end(), train.begin(), train.end());
    return RunProgram(all);
  };
  const Arguments train = Train("out", {"--train.steps=4", "--parallel.shard=full"});
  const Result r =
      launch("\"$@\" || exit; [ $RANK$LOCKSTEP_RESTARTS = 10 ] && kill -9 $$; exit 0", train);
  EXPECT_EQ(r.exit_code, 0) << r;
  EXPECT_THAT(r.err, AllOf(HasSubstr("(restart 1 of"), Not(HasSubstr("(restart 2 of"))));
  EXPECT_TRUE(PathExists(Path("out/DONE")));
  for (const Arguments& arguments :
       {train, Train("x", {"--init_from=nowhere"}), Train("x", {"--train.recompute=blok"})}) {
    const Result refused = launch("exec \"$@\"", arguments);
    EXPECT_EQ(refused.exit_code, 2) << refused;
    EXPECT_THAT(refused.err, Not(HasSubstr("restarting all ranks"))) << refused;
  }
}

// The launcher restarts all ranks from the newest checkpoint, to the same result.
TEST_F(LaunchedRuns, ContinueToTheSameWeightsAfterAKill) {
  const Arguments options = {"--train.steps=200", "--dist.reduction=ordered",
                             "--train.global_batch_size=8"};
  Run(1, "straight", options);
  // With half as many ranks after the restart.
  Arguments arguments = {"tools/launch",
                         "--nproc=4",
                         "--max_restarts=1",
                         "--restart_nproc=2",
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
                           HasSubstr("restarting all ranks (restart 1 of at most 1)")));
  EXPECT_THAT(r.out, AllOf(HasSubstr("on 4 ranks ="), HasSubstr("resuming from"),
                           HasSubstr("on 2 ranks =")));
  EXPECT_EQ(Bytes("out", 200), Bytes("straight", 200));
}

}  // namespace
}  // namespace lockstep
