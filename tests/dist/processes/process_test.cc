// Ranks that are processes: what the survivors report when one of them dies, makes a different
// call, or was never started.
#include <gmock/gmock-matchers.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "dist/control/socket.h"
#include "tests/sanitized.h"
#include "tests/subprocess.h"

namespace lockstep::dist {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;
using Environment = std::map<std::string, std::string>;

constexpr char kRank[] = "tests/dist/processes/rank";
// The limit from one's death to the others' exit. The group's timeout is five minutes.
constexpr double kSecondsToHear = lockstep::test::kSanitized ? 20 : 5;

Environment Of(int rank, int size, int port) {
  return {{"RANK", StrCat(rank)},
          {"WORLD_SIZE", StrCat(size)},
          {"MASTER_PORT", StrCat(port)},
          {"LOCKSTEP_SECRET", "a secret"}};
}

int FreePort() { return PortOf(Listen("127.0.0.1", 0)); }

class Ranks {
 public:
  explicit Ranks(const std::vector<Environment>& environments,
                 const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {kRank};
    command.insert(command.end(), arguments.begin(), arguments.end());
    for (const Environment& e : environments) {
      processes_.push_back(std::make_unique<Subprocess>(command, e));
    }
  }
  Ranks(int size, const std::vector<std::string>& arguments, const Environment& extra = {})
      : Ranks(OfAll(size, extra), arguments) {}

  Subprocess& operator[](size_t rank) { return *processes_[rank]; }
  std::vector<Result> Wait() {
    std::vector<Result> results;
    for (auto& p : processes_) results.push_back(p->Wait());
    return results;
  }

 private:
  static std::vector<Environment> OfAll(int size, const Environment& extra) {
    const int port = FreePort();
    std::vector<Environment> all;
    for (int r = 0; r < size; ++r) {
      all.push_back(Of(r, size, port));
      all.back().insert(extra.begin(), extra.end());
    }
    return all;
  }

  std::vector<std::unique_ptr<Subprocess>> processes_;
};

auto Succeeds() { return AllOf(Field(&Result::exit_code, 0), Field(&Result::err, "")); }
template <class Matcher>
auto Fails(const Matcher& matcher) {
  return AllOf(Field(&Result::exit_code, 1), Field(&Result::err, matcher),
               Field(&Result::out, Not(HasSubstr("WRONG DATA"))));
}

TEST(ProcessTest, RanksSum) {
  Ranks ranks(3, {"20"});
  const auto results = ranks.Wait();
  EXPECT_THAT(results, Each(Succeeds()));
  EXPECT_THAT(results, Each(Field(&Result::out, HasSubstr("step 20\n"))));
}

// Reliability promise 1: kill -9 at any moment.
TEST(ProcessTest, SurvivorsNameTheRankThatWasKilled) {
  for (size_t victim = 0; victim < 3; ++victim) {
    Ranks ranks(3, {"1000000000"});
    ranks[0].WaitForOutput("step 3\n");
    std::this_thread::sleep_for(std::chrono::microseconds(1700 * victim));
    ranks[victim].Signal(SIGKILL);
    const auto begin = Clock::now();
    const auto results = ranks.Wait();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    EXPECT_LT(seconds, kSecondsToHear);
    for (size_t r = 0; r < 3; ++r) {
      if (r == victim) {
        EXPECT_EQ(results[r].signal, SIGKILL);
        continue;
      }
      EXPECT_THAT(results[r],
                  Fails(AllOf(HasSubstr(StrCat("rank ", r, ", group 'world', all_reduce #")),
                              HasSubstr(StrCat("rank ", victim)))));
      EXPECT_THAT(results[r].err, HasSubstr(StrCat("rank ", victim, " is gone")));
    }
  }
}

// Reliability promise 2: SIGSTOP. The group's timeout is five minutes.
TEST(ProcessTest, AStalledRankIsNamedBeforeTheTimeout) {
  for (size_t victim = 0; victim < 3; ++victim) {
    Ranks ranks(3, {"1000000000"}, {{"TEST_HEARTBEAT_SECONDS", "3"}});
    ranks[0].WaitForOutput("step 3\n");
    ranks[victim].Stop();
    const auto begin = Clock::now();
    for (size_t r = 0; r < 3; ++r) {
      if (r == victim) continue;
      const Result result = ranks[r].Wait();
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60));
      const std::string words =
          StrCat("rank ", victim, " is stalled: its process has shown no sign of life for 2 s");
      EXPECT_THAT(result,
                  Fails(AllOf(HasSubstr(StrCat("rank ", r, ", group 'world', all_reduce #")),
                              HasSubstr(words))));
    }
    // If it continues after all, it learns of the failure and ends.
    ranks[victim].Signal(SIGCONT);
    EXPECT_EQ(ranks[victim].Wait().exit_code, 1);
  }
}

// Reliability promise 3.
TEST(ProcessTest, ASlowRankIsNotDead) {
  for (size_t victim = 0; victim < 3; ++victim) {
    Ranks ranks(3, {"2000"}, {{"TEST_HEARTBEAT_SECONDS", "60"}});
    ranks[0].WaitForOutput("step 3\n");
    ranks[victim].Stop();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    ranks[victim].Signal(SIGCONT);
    EXPECT_THAT(ranks.Wait(), Each(Succeeds()));
  }
}

// As by Ctrl-Z and fg: no rank is named before one of them dies.
TEST(ProcessTest, ARunThatIsStoppedAsAWholeGoesOn) {
  Ranks ranks(3, {"1000000000"}, {{"TEST_HEARTBEAT_SECONDS", "3"}});
  ranks[0].WaitForOutput("step 3\n");
  std::this_thread::sleep_for(std::chrono::seconds(3));  // so that silence counts
  for (size_t r = 0; r < 3; ++r) ranks[r].Stop();
  std::this_thread::sleep_for(std::chrono::seconds(5));
  for (size_t r = 0; r < 3; ++r) ranks[r].Signal(SIGCONT);
  std::this_thread::sleep_for(std::chrono::seconds(4));
  ranks[0].Signal(SIGKILL);
  for (const size_t r : {1u, 2u}) {
    EXPECT_THAT(ranks[r].Wait(), Fails(HasSubstr("rank 0 is gone: its process ended")));
  }
}

// A survivor reports its own position: at the call that the lost rank did not make, or still at the
// one before.
auto AtCall(int number) {
  return testing::AnyOf(HasSubstr(StrCat("all_reduce #", number)),
                        HasSubstr(StrCat("all_reduce #", number - 1)));
}

TEST(ProcessTest, ARankThatEndsWithoutLeavingIsNamed) {
  Ranks ranks(3, {"100", "1", "7", "exit"});
  const auto results = ranks.Wait();
  EXPECT_EQ(results[1].exit_code, 0);
  for (const size_t r : {0u, 2u}) {
    EXPECT_THAT(results[r], Fails(AllOf(AtCall(7), HasSubstr("rank 1 is gone"))));
  }
}

// Reliability promise 6.
TEST(ProcessTest, MismatchesAreErrorsOfEveryRank) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"resize", "ranks 0 and 1 all_reduce #4 (f32[100000], sum)",
       "rank 2 all_reduce #4 (f32[50000], sum)"},
      {"swap", "ranks 0 and 1 all_reduce #4 (f32[100000], sum)",
       "rank 2 broadcast #4 (f32[100000]"},
  };
  for (const auto& [what, others, culprit] : cases) {
    Ranks ranks(3, {"100", "2", "4", what});
    EXPECT_THAT(ranks.Wait(), Each(Fails(AllOf(HasSubstr(others), HasSubstr(culprit)))));
  }
}

TEST(ProcessTest, AnErrorOfOneEndsTheOthers) {
  Ranks ranks(3, {"100", "1", "4", "throw"});
  const auto results = ranks.Wait();
  EXPECT_THAT(results[1], Fails(AllOf(HasSubstr("shard 3 is truncated"))));
  for (const size_t r : {0u, 2u}) {
    EXPECT_THAT(results[r], Fails(AllOf(AtCall(4), HasSubstr("rank 1 gave up"))));
  }
}

TEST(ProcessTest, ARankThatHangsIsNamedAtTheTimeout) {
  Ranks ranks(2, {"100", "1", "4", "hang"}, {{"TEST_TIMEOUT_SECONDS", "3"}});
  EXPECT_THAT(ranks[0].Wait(), Fails(AllOf(HasSubstr("all_reduce #4"),
                                           HasSubstr("rank 1 did not take part within 3 s"))));
}

// Answers to questions come through rank 0.
TEST(ProcessTest, RankZeroIsNamedAtTheTimeoutIfItIsStopped) {
  Ranks ranks(3, {"1000000000"}, {{"TEST_TIMEOUT_SECONDS", "3"}, {"TEST_HEARTBEAT_SECONDS", "0"}});
  ranks[0].WaitForOutput("step 3\n");
  ranks[0].Stop();
  for (const size_t r : {1u, 2u}) {
    EXPECT_THAT(ranks[r].Wait(), Fails(AllOf(HasSubstr("rank 0 does not answer (stopped"),
                                             Not(HasSubstr("called nothing")))));
  }
  ranks[0].Signal(SIGKILL);
}

// A declared pause only suspends the timeout.
TEST(ProcessTest, ARankThatDiesOrStallsInAPauseIsNamed) {
  for (const bool dies : {true, false}) {
    Ranks ranks(3, {"100", "1", "4", "pause"},
                {{"TEST_TIMEOUT_SECONDS", "2"}, {"TEST_HEARTBEAT_SECONDS", "3"}});
    ranks[1].WaitForOutput("pauses\n");
    std::this_thread::sleep_for(std::chrono::seconds(6));
    if (dies) {
      ranks[1].Signal(SIGKILL);
    } else {
      ranks[1].Stop();
    }
    const auto begin = Clock::now();
    for (const size_t r : {0u, 2u}) {
      EXPECT_THAT(ranks[r].Wait(),
                  Fails(HasSubstr(dies ? "rank 1 is gone" : "rank 1 is stalled: its process")));
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(lockstep::test::kSanitized ? 60 : 15));
    ranks[1].Signal(SIGKILL);
  }
}

// Reliability promise 20.
TEST(ProcessTest, MissingRanksAreListed) {
  const int port = FreePort();
  Environment extra = {{"TEST_JOIN_SECONDS", lockstep::test::kSanitized ? "20" : "6"}};
  std::vector<Environment> two = {Of(0, 4, port), Of(2, 4, port)};
  for (Environment& e : two) e.insert(extra.begin(), extra.end());
  Ranks ranks(two, {"1"});
  EXPECT_THAT(ranks.Wait(), Each(Fails(HasSubstr("ranks 1 and 3 of 4 did not reach rank 0"))));
}

TEST(ProcessTest, ContradictionsAreErrorsOfEveryRank) {
  const int port = FreePort();
  Ranks twice({Of(0, 3, port), Of(1, 3, port), Of(1, 3, port)}, {"1"});
  EXPECT_THAT(twice.Wait(), Each(Fails(HasSubstr("rank 1 is claimed by process"))));
  const int other = FreePort();
  Ranks sizes({Of(0, 3, other), Of(1, 2, other)}, {"1"});
  EXPECT_THAT(sizes.Wait(), Each(Fails(HasSubstr("ranks disagree on the world size"))));
  Ranks beyond({Of(2, 2, other)}, {"1"});
  EXPECT_THAT(beyond.Wait(), ElementsAre(Fails(HasSubstr("RANK is 2, but WORLD_SIZE is 2"))));
  Environment without = Of(0, 2, other);
  without.erase("WORLD_SIZE");
  Ranks missing({without}, {"1"});
  EXPECT_THAT(missing.Wait(), ElementsAre(Fails(HasSubstr("WORLD_SIZE is not"))));
}

TEST(ProcessTest, ARankWithAnotherSecretIsRefused) {
  const int port = FreePort();
  std::vector<Environment> two = {Of(0, 2, port), Of(1, 2, port)};
  two[1]["LOCKSTEP_SECRET"] = "another secret";
  for (Environment& e : two) e["TEST_JOIN_SECONDS"] = "3";
  Ranks ranks(two, {"1"});
  const auto results = ranks.Wait();
  EXPECT_THAT(results[0], Fails(HasSubstr("rank 1 of 2 did not reach")));
  EXPECT_THAT(results[1], Fails(HasSubstr("is LOCKSTEP_SECRET the same on all ranks?")));
}

}  // namespace
}  // namespace lockstep::dist
