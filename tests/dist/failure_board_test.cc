// What ranks tell each other through the store, and how they treat values that none of them wrote.
#include "dist/control/failure_board.h"

#include <gmock/gmock.h>

#include <future>

#include "dist/control/flight_log.h"
#include "dist/control/in_process_store.h"
#include "dist/control/pause.h"
#include "dist/groups/host_group.h"
#include "dist/groups/in_process_transport.h"

namespace lockstep::dist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

constexpr int kSize = 3;

// The failure as rank 1 learns it.
Failure Heard(const std::string& note) {
  const auto store = MakeInProcessStore();
  store->Set("failure", note);
  std::promise<Failure> heard;
  FailureBoard board(*store, {.rank = 1, .size = kSize, .on_failure = [&](const Failure& f) {
                                heard.set_value(f);
                              }});
  return heard.get_future().get();
}

TEST(FailureBoardTest, LearnsWhatAnotherRankHasPosted) {
  const auto store = MakeInProcessStore();
  std::promise<Failure> heard;
  FailureBoard board(*store, {.rank = 1, .size = kSize, .on_failure = [&](const Failure& f) {
                                heard.set_value(f);
                              }});
  FailureBoard other(*store, {.rank = 2, .size = kSize, .on_failure = [](const Failure&) {}});
  Failure mine;
  mine.cause = CollectiveError::Cause::kTimeout;
  mine.rank = 2;
  mine.culprits = {0, 1};
  mine.reason = "they sleep";
  other.Post(mine);
  const Failure f = heard.get_future().get();
  EXPECT_EQ(f.cause, mine.cause);
  EXPECT_EQ(f.rank, 2);
  EXPECT_THAT(f.culprits, ElementsAre(0, 1));
  EXPECT_EQ(f.reason, "they sleep");
}

TEST(FailureBoardTest, ShowsAValueThatNoRankHasWrittenAndBlamesNobody) {
  const std::string call = "[6,0,8,0,0,1]";
  const auto note = [&](const std::string& cause, const std::string& rank,
                        const std::string& culprits, const std::string& operation) {
    return StrCat(R"({"cause":)", cause, R"(,"rank":)", rank, R"(,"culprits":)", culprits,
                  R"(,"operation":)", operation, R"(,"purpose":"","reason":"forged"})");
  };
  ASSERT_EQ(Heard(note("1", "2", "[0]", call)).reason, "forged");
  for (const std::string& forged :
       {std::string("garbage"), std::string(), std::string("\0\xff{", 3), std::string("[]"),
        std::string("{}"), note("1", "-5", "[0]", call), note("1", "3", "[0]", call),
        note("1", "2", "[-1]", call), note("1", "2", "[3]", call), note("1", "2", "7", call),
        note("1", "2", R"(["x"])", call), note("77", "2", "[0]", call),
        note("1.5", "2", "[0]", call), note("1", "99999999999999999999", "[0]", call),
        note("1", "2", "[0]", "[1,2]"), note("1", "2", "[0]", "null")}) {
    const Failure f = Heard(forged);
    EXPECT_EQ(f.rank, 1) << forged;
    EXPECT_THAT(f.culprits, IsEmpty()) << forged;
    const std::string text = ErrorOf(f, "g", 1, {}).what();
    EXPECT_THAT(text, AllOf(HasSubstr("the store of this process holds \""),
                            HasSubstr("which no rank writes"), Not(HasSubstr("json.exception")),
                            Not(HasSubstr("reported by"))));
  }
}

TEST(FailureBoardTest, IgnoresPositionsAndLostRanksThatNoRankHasWritten) {
  const auto store = MakeInProcessStore();
  FailureBoard board(*store, {.rank = 0,
                              .size = kSize,
                              .on_failure = [](const Failure&) { FAIL(); },
                              .position = [] { return CallPosition{}; }});
  for (const std::string forged : {"", "x", "{}", "[]", "[[1,2],3,true]", "[-1]", "[3]", "[[0]]"}) {
    store->Set("position/1", forged);
    store->Set("lost/1", forged);
    store->Set("lost/2", "[0]");
    EXPECT_THAT(board.Positions(), ElementsAre(Pair(0, testing::_))) << forged;
    auto lost = board.Lost();
    if (forged == "[]") lost.erase(1);  // it timed out
    EXPECT_THAT(lost, ElementsAre(Pair(2, ElementsAre(0)))) << forged;
  }
  const std::string forged_log("\xff\xff\xff\xff forged, and as long as it likes to be: 48 bytes");
  store->Set("calls/1", forged_log);
  EXPECT_EQ(PostedLogs(store.get(), 0, kSize).OfOthers().at(1).last(), 0);
}

// Groups that come and go leave nothing behind, and their names can be reused.
TEST(FailureBoardTest, LeavesNothingBehindInTheStore) {
  const auto store = MakeInProcessStore();
  const int64_t before = store->Bytes();
  for (int i = 0; i < 3; ++i) {
    auto transports = MakeInProcessTransports(2);
    std::vector<std::thread> threads;
    for (auto& transport : transports) {
      threads.emplace_back([&] {
        const auto group = MakeHostGroup(std::move(transport), *store, {.name = "again"});
        group->Barrier()->Synchronize();
        {
          // It publishes its position and the pause, which ends just before the group does.
          const Pause pause(group.get(), "writing a checkpoint");
          std::this_thread::sleep_for(FailureBoard::kBeat + milliseconds(200));
        }
        EXPECT_GT(store->Bytes(), before);
        group->Barrier()->Synchronize();
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(store->Bytes(), before);
  }
}

}  // namespace
}  // namespace lockstep::dist
