// The launcher, with shells and small programs as ranks.
#include <gmock/gmock-matchers.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "core/io/file.h"
#include "core/system/processors.h"
#include "dist/control/socket.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Arguments = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

constexpr char kRank[] = "tests/dist/processes/rank";

Arguments Command(const Arguments& options, const Arguments& program) {
  Arguments all = {"tools/launch"};
  all.insert(all.end(), options.begin(), options.end());
  all.push_back("--");
  all.insert(all.end(), program.begin(), program.end());
  return all;
}

Arguments Shell(const Arguments& options, const std::string& script) {
  return Command(options, {"bash", "-c", script});
}

// Waits until both ranks have printed "ready".
void WaitUntilReady(Subprocess& launch) {
  launch.WaitForOutput("[0] ready\n");
  launch.WaitForOutput("[1] ready\n");
}

std::set<std::string> LinesOf(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.insert(line);
  return lines;
}

// For reliability promise 21: looks into the process table.
bool Runs(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(status, text)) return false;
  return text[text.rfind(')') + 2] != 'Z';
}

TEST(Launch, EachRankKnowsItsPlace) {
  const Result r =
      RunProgram(Shell({"--nproc=3"},
                       "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $MASTER_ADDR"),
                 {{"RANK", "77"}});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(LinesOf(r.out),
              testing::ElementsAre("[0] 0 of 3, 0 of 3, 127.0.0.1", "[1] 1 of 3, 1 of 3, 127.0.0.1",
                                   "[2] 2 of 3, 2 of 3, 127.0.0.1"));
  EXPECT_EQ(r.err, "");
}

TEST(Launch, MachinesCountOn) {
  const Result r = RunProgram(
      Shell({"--nproc=2", "--nnodes=2", "--node_rank=1", "--rdzv=192.0.2.1:1234"},
            "echo $RANK of $WORLD_SIZE, $LOCAL_RANK, $MASTER_ADDR:$MASTER_PORT $LOCKSTEP_SECRET"),
      {{"LOCKSTEP_SECRET", "s"}});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(LinesOf(r.out), testing::ElementsAre("[2] 2 of 4, 0, 192.0.2.1:1234 s",
                                                   "[3] 3 of 4, 1, 192.0.2.1:1234 s"));
}

TEST(Launch, RanksMeetAndShareTheProcessors) {
  const Result r = RunProgram(Command({"--nproc=3"}, {kRank, "20"}));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  for (const char* const rank : {"[0] ", "[1] ", "[2] "}) {
    EXPECT_THAT(r.out, HasSubstr(std::string(rank) + "step 20\n"));
  }
  const int share = std::max(1, UsableProcessors() / 3);
  EXPECT_THAT(
      RunProgram(Shell({"--nproc=3"}, "echo $OMP_NUM_THREADS"), {{"OMP_NUM_THREADS", ""}}).out,
      HasSubstr("[1] " + std::to_string(share) + "\n"));
  EXPECT_THAT(
      RunProgram(Shell({"--nproc=3"}, "echo $OMP_NUM_THREADS"), {{"OMP_NUM_THREADS", "5"}}).out,
      HasSubstr("[1] 5\n"));
}

TEST(Launch, ConcurrentRunsHaveTheirOwnPortsAndSecrets) {
  Subprocess a(Shell({"--nproc=2"}, "echo $MASTER_PORT $LOCKSTEP_SECRET; sleep 1"));
  Subprocess b(Shell({"--nproc=2"}, "echo $MASTER_PORT $LOCKSTEP_SECRET; sleep 1"));
  const auto seen = [](const Result& r) {
    std::set<std::string> places;
    for (const std::string& line : LinesOf(r.out)) places.insert(line.substr(4));
    EXPECT_EQ(places.size(), 1u) << "its ranks agree";
    return *places.begin();
  };
  const std::string x = seen(a.Wait()), y = seen(b.Wait());
  EXPECT_NE(x.substr(0, x.find(' ')), y.substr(0, y.find(' ')));
  EXPECT_NE(x.substr(x.find(' ')), y.substr(y.find(' ')));
}

TEST(Launch, RanksOutputComesInWholeLinesAndIntoFiles) {
  const std::string logs = JoinPath(testing::TempDir(), "launch_logs");
  RemoveTree(logs);
  const Result r = RunProgram(
      Shell({"--nproc=2", "--log_dir=" + logs},
            "for i in {1..300}; do printf 'begin '; printf 'end%d\\n' $i; done; echo bad >&2; "
            "printf 'no newline'"));
  EXPECT_EQ(r.exit_code, 0);
  std::istringstream in(r.out);
  const std::regex whole("\\[[01]\\] (begin end\\d+|no newline)");
  int lines = 0;
  for (std::string line; std::getline(in, line); ++lines)
    EXPECT_TRUE(std::regex_match(line, whole)) << line;
  EXPECT_EQ(lines, 602);
  EXPECT_THAT(LinesOf(r.err), testing::ElementsAre("[0] bad", "[1] bad"));
  const std::string log = ReadFile(JoinPath(logs, "start-0/rank-1/stdout.log"));
  EXPECT_TRUE(log.starts_with("begin end1\nbegin end2\n"));
  EXPECT_TRUE(log.ends_with("begin end300\nno newline"));
  EXPECT_EQ(ReadFile(JoinPath(logs, "start-0/rank-0/stderr.log")), "bad\n");
}

// Progress bars are shown as they arrive; a rank that writes without ever ending a line neither
// fills memory nor keeps the launcher from handling signals.
TEST(Launch, LinesThatDoNotEnd) {
  Subprocess bars(Shell({"--nproc=1"}, "printf 'half\\r'; printf 'done\\r'; sleep 1000"));
  bars.WaitForOutput("[0] half\r[0] done\r");
  bars.Signal(SIGTERM);
  EXPECT_EQ(bars.Wait().exit_code, 128 + SIGTERM);
  const Result ends = RunProgram(Shell(
      {"--nproc=1"}, "printf 'dos\\r\\n\\r 10%%\\r 99%%\\nend\\n\\n'; printf 'last' >&2; exit 3"));
  EXPECT_EQ(ends.out, "[0] dos\r\n[0]  10%\r[0]  99%\n[0] end\n[0] \n");
  EXPECT_THAT(ends.err, HasSubstr("launch:   | last"));

  Subprocess endless(Shell({"--nproc=1"}, "echo ready >&2; exec tr '\\0' x </dev/zero"));
  endless.WaitForOutput(std::string(1 << 20, 'x').substr(0, 60000));
  endless.Signal(SIGTERM);
  const Result r = endless.Wait();
  EXPECT_EQ(r.exit_code, 128 + SIGTERM);
  size_t longest = 0;
  std::istringstream in(r.out);
  for (std::string line; std::getline(in, line);) longest = std::max(longest, line.size());
  EXPECT_LT(longest, 200'000u);
}

// ---- Failures ----

TEST(Launch, TheFirstFailureIsTheCauseAndEndsTheOthers) {
  const auto begin = Clock::now();
  const Result r = RunProgram(
      Shell({"--nproc=3", "--grace=1"},
            "if [ $RANK = 1 ]; then echo shard 3 is missing >&2; exit 7; fi; sleep 1000"));
  EXPECT_EQ(r.exit_code, 7);
  EXPECT_THAT(r.err, AllOf(HasSubstr("launch: the first failure: rank 1 ended with exit code 7"),
                           HasSubstr("launch:   | shard 3 is missing"),
                           HasSubstr("after it: rank 0 was killed by signal 15 (Terminated); "
                                     "rank 2 was killed by signal 15 (Terminated)")));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
}

TEST(Launch, RanksThatIgnoreTerminationAreKilled) {
  const Result r = RunProgram(Shell({"--nproc=2", "--grace=0.5"},
                                    "trap '' TERM; [ $RANK = 0 ] || exit 3; while :; do sleep 1; "
                                    "done"));
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_THAT(r.err, HasSubstr("after it: rank 0 was killed by signal 9 (Killed)"));
}

// All three end within milliseconds, perhaps the one that threw last: only their reports tell.
TEST(Launch, ARankThatBlamesAnotherIsNotTheCause) {
  const Result r = RunProgram(Command({"--nproc=3"}, {kRank, "100", "1", "4", "throw"}));
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_THAT(r.err, HasSubstr("the first failure: rank 1 ended with exit code 1"));
  EXPECT_THAT(r.err, testing::ContainsRegex("after [0-9.]+ s: shard 3 is truncated"));
}

TEST(Launch, AMalformedReportIsIgnored) {
  const Result r = RunProgram(
      Shell({"--nproc=1"}, R"(echo '{"message": 7, "consequence": "yes"}' >&3; exit 7)"));
  EXPECT_EQ(r.exit_code, 7);
  EXPECT_THAT(r.err, HasSubstr("launch: the first failure: rank 0 ended with exit code 7"));
}

TEST(Launch, AKilledRankIsTheCause) {
  const Result r = RunProgram(Command({"--nproc=3"}, {kRank, "1000000", "2", "4", "kill"}));
  EXPECT_EQ(r.exit_code, 128 + SIGKILL);
  EXPECT_THAT(r.err, AllOf(HasSubstr("the first failure: rank 2 was killed by signal 9 (Killed)"),
                           HasSubstr("after it: rank 0 ended with exit code 1; rank 1 ended with "
                                     "exit code 1")));
}

TEST(Launch, AProgramThatIsNotThereIsAnError) {
  const Result r = RunProgram({"tools/launch", "--nproc=2", "no_such_program"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_EQ(r.err, "launch: cannot run no_such_program: No such file or directory\n");
}

// Reliability promise 19.
TEST(Launch, APortThatIsTakenIsAnErrorThatNamesItsOwner) {
  const dist::Socket mine = dist::Listen("127.0.0.1", 0);
  const std::string port = std::to_string(dist::PortOf(mine));
  const Result r = RunProgram(Command({"--nproc=2", "--rdzv=127.0.0.1:" + port}, {kRank, "20"}),
                              {{"TEST_JOIN_SECONDS", "3"}});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_THAT(r.err, AllOf(HasSubstr("the first failure: rank 0"), HasSubstr("127.0.0.1:" + port),
                           HasSubstr("which process " + std::to_string(getpid()) + " ("),
                           HasSubstr("choose another MASTER_PORT")));
}

// ---- Restarts ----

TEST(Launch, RestartsAsOftenAsAsked) {
  const std::string script = "echo start $LOCKSTEP_RESTARTS; [ $LOCKSTEP_RESTARTS = 2 ] || exit 5";
  const Result well = RunProgram(Shell({"--nproc=2", "--max_restarts=2"}, script));
  EXPECT_EQ(well.exit_code, 0);
  EXPECT_THAT(well.out, AllOf(HasSubstr("[0] start 0\n"), HasSubstr("[1] start 1\n"),
                              HasSubstr("[0] start 2\n"), Not(HasSubstr("start 3"))));
  EXPECT_THAT(well.err, HasSubstr("restarting all ranks (restart 2 of at most 2)"));
  const Result badly = RunProgram(Shell({"--nproc=2", "--max_restarts=1"}, script));
  EXPECT_EQ(badly.exit_code, 5);
  EXPECT_THAT(badly.out, Not(HasSubstr("start 2")));
}

// A wrong command line would only fail again.
TEST(Launch, UsageErrorsAreNotRestarted) {
  const std::string script = "echo start $LOCKSTEP_RESTARTS; exit 2";
  const Result r = RunProgram(Shell({"--nproc=2", "--max_restarts=3"}, script));
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_THAT(r.out, AllOf(HasSubstr("[0] start 0\n"), Not(HasSubstr("start 1"))));
  EXPECT_THAT(r.err, AllOf(HasSubstr("the first failure: rank "),
                           HasSubstr("not restarted, since it would fail again")));
}

TEST(Launch, RanksMeetAgainAfterARestart) {
  const Result r = RunProgram(Shell({"--nproc=2", "--max_restarts=1"},
                                    std::string("[ $LOCKSTEP_RESTARTS = 0 ] && exec ") + kRank +
                                        " 1000000 1 4 kill; exec " + kRank + " 20"));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, AllOf(HasSubstr("[0] step 20\n"), HasSubstr("[1] step 20\n")));
}

// ---- Signals, and the launcher's own end (reliability promise 21) ----

TEST(Launch, ForwardsSignals) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    Subprocess launch(Shell({"--nproc=2"},
                            "trap 'echo ends well; exit 130' TERM INT HUP USR1; echo ready; "
                            "while :; do sleep 0.05; done"));
    WaitUntilReady(launch);
    launch.Signal(number);
    const Result r = launch.Wait();
    EXPECT_EQ(r.exit_code, 128 + number);
    EXPECT_THAT(r.out, AllOf(HasSubstr("[0] ends well\n"), HasSubstr("[1] ends well\n")));
    EXPECT_THAT(r.err, Not(HasSubstr("failure"))) << "it was asked for";
  }
}

// A trainer's ranks all stop after a signal to one of them. That is no failure, and no reason to
// restart.
TEST(Launch, RanksThatASignalStoppedTogetherHaveNotFailed) {
  for (const std::string code : {"129", "130", "138", "143"}) {
    const Result r = RunProgram(Shell({"--nproc=3", "--max_restarts=1"}, "exit " + code));
    EXPECT_EQ(std::to_string(r.exit_code), code);
    EXPECT_EQ(r.err, "");
  }
  const Result one = RunProgram(Shell({"--nproc=2"}, "exit $((130 + RANK))"));
  EXPECT_THAT(one.err, HasSubstr("the first failure"));
}

// A checkpoint may take long: ranks that have already ended do not hurry the others.
TEST(Launch, WaitsForRanksThatStillWriteAfterASignal) {
  Subprocess launch(Shell({"--nproc=2", "--grace=0"},
                          "trap '[ $RANK = 1 ] || sleep 7; echo saved; exit 143' TERM; echo ready; "
                          "while :; do sleep 0.05; done"));
  WaitUntilReady(launch);
  launch.Signal(SIGTERM);
  const Result r = launch.Wait();
  EXPECT_EQ(r.exit_code, 128 + SIGTERM);
  EXPECT_THAT(r.out, AllOf(HasSubstr("[0] saved\n"), HasSubstr("[1] saved\n")));
}

// Who requeues a job by the exit code should know that nothing was saved.
TEST(Launch, ARankThatFailsAfterASignalIsAFailure) {
  const auto after_signal = [](const std::string& report) {
    Subprocess launch(
        Shell({"--nproc=2"}, "trap '[ $RANK = 1 ] && exit 143; echo \"" + report +
                                 "\" >&$LOCKSTEP_LAUNCHER_FD; exit 1' TERM; echo ready; "
                                 "while :; do sleep 0.05; done"));
    WaitUntilReady(launch);
    launch.Signal(SIGTERM);
    return launch.Wait();
  };
  const Result full =
      after_signal(R"({\"message\": \"the disk is full\", \"consequence\": false})");
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, HasSubstr("the disk is full"));
  const Result consequence =
      after_signal(R"({\"message\": \"rank 1 is gone\", \"consequence\": true})");
  EXPECT_EQ(consequence.exit_code, 128 + SIGTERM);
}

TEST(Launch, TheThirdSignalKills) {
  Subprocess launch(Shell({"--nproc=2"}, "trap '' TERM; echo ready; while :; do sleep 0.05; done"));
  WaitUntilReady(launch);
  for (int i = 0; i < 3; ++i) {
    launch.Signal(SIGTERM);
    // Those of a second count as one.
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  }
  EXPECT_EQ(launch.Wait().exit_code, 128 + SIGTERM);
}

TEST(Launch, NoRankOutlivesALauncherThatWasKilled) {
  Subprocess launch(Shell({"--nproc=3"},
                          "trap '' TERM HUP; echo process $$; echo ready; "
                          "exec sleep 1000"));
  std::vector<pid_t> ranks;
  for (int r = 0; r < 3; ++r) {
    const std::string prefix = "[" + std::to_string(r) + "] ";
    launch.WaitForOutput(prefix + "ready\n");
    const size_t at = launch.output().find(prefix + "process ");
    ranks.push_back(std::stoi(launch.output().substr(at + prefix.size() + 8)));
    EXPECT_TRUE(Runs(ranks.back()));
  }
  launch.Signal(SIGKILL);
  const auto begin = Clock::now();
  for (const pid_t rank : ranks) {
    while (Runs(rank) && Clock::now() - begin < std::chrono::seconds(10))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(Runs(rank)) << rank;
  }
}

}  // namespace
}  // namespace lockstep
