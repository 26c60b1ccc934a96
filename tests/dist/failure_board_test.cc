// What ranks tell each other about failures, and how they treat what none of them can have said.
#include "dist/control/failure_board.h"

#include <gmock/gmock-more-matchers.h>

#include <future>

#include "tests/dist/in_process.h"

namespace lockstep::dist {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::Pair;

constexpr int kSize = 3;

std::vector<std::shared_ptr<ControlPlane>> Planes() {
  auto planes = MakeLocalPlanes(kSize);
  for (const auto& plane : planes) plane->WaitUntilOpen();
  return planes;
}

// A rank leaves after those below it.
void Leave(std::vector<std::shared_ptr<ControlPlane>> planes) {
  while (!planes.empty()) planes.pop_back();
}

FailureBoard::Options Board(const std::string& group) {
  return {.group = group, .members = AllRanks(kSize), .on_failure = [](const Failure&) {}};
}

TEST(FailureBoardTest, AllRanksLearnOfTheFirstFailure) {
  const auto planes = Planes();
  std::promise<Failure> heard[kSize];
  std::vector<std::unique_ptr<FailureBoard>> boards;
  for (int r = 0; r < kSize; ++r) {
    auto options = Board("steps");
    options.on_failure = [&heard, r](const Failure& f) { heard[r].set_value(f); };
    boards.push_back(std::make_unique<FailureBoard>(planes[static_cast<size_t>(r)], options));
  }
  Failure mine;
  mine.cause = CollectiveError::Cause::kTimeout;
  mine.rank = 2;
  mine.culprits = {0, 1};
  mine.reason = "they sleep";
  EXPECT_EQ(boards[2]->Post(mine).reason, "they sleep");
  for (auto& promise : heard) {
    const Failure f = promise.get_future().get();
    EXPECT_EQ(f.cause, mine.cause);
    EXPECT_EQ(f.rank, 2);
    EXPECT_EQ(f.group, "steps");
    EXPECT_THAT(f.culprits, ElementsAre(0, 1));
    EXPECT_EQ(f.reason, "they sleep");
  }
  mine.reason = "a later one";
  EXPECT_EQ(boards[1]->Post(mine).reason, "they sleep");
  // Also boards made afterwards.
  std::promise<Failure> late;
  auto options = Board("others");
  options.on_failure = [&](const Failure& f) { late.set_value(f); };
  const FailureBoard board(planes[0], options);
  EXPECT_EQ(late.get_future().get().reason, "they sleep");
}

TEST(FailureBoardTest, FailuresThatNoRankSendsAreNotRead) {
  Failure good = FailureOf(CollectiveError::Cause::kAborted, 2, "forged");
  ASSERT_TRUE(ParseFailure(ToText(good), kSize));
  EXPECT_FALSE(ParseFailure(ToText(good), 2));
  const std::string call = R"({"values":[6,0,8,0,0,1]})", cause = R"("timeout")";
  const auto note = [&](const std::string& why, const std::string& rank,
                        const std::string& culprits, const std::string& operation) {
    return StrCat(R"({"cause":)", why, R"(,"reported_by":)", rank, R"(,"group":"","culprits":)",
                  culprits, R"(,"operation":)", operation, R"(,"purpose":"","reason":"forged"})");
  };
  ASSERT_TRUE(ParseFailure(note(cause, "2", "[0]", call), kSize));
  std::string no_group = note(cause, "2", "[0]", call);
  no_group.erase(no_group.find(R"("group":"",)"), std::string(R"("group":"",)").size());
  for (const std::string& forged :
       {no_group, std::string("garbage"), std::string(), std::string("\0\xff{", 3),
        std::string("[]"), std::string("{}"), note(cause, "-5", "[0]", call),
        note(cause, "3", "[0]", call), note(cause, "2", "[-1]", call),
        note(cause, "2", "[3]", call), note(cause, "2", "7", call),
        note(cause, "2", R"(["x"])", call), note(R"("mischief")", "2", "[0]", call),
        note("1", "2", "[0]", call), note(cause, "99999999999999999999", "[0]", call),
        note(cause, "2", "[0]", R"({"values":[1,2]})"), note(cause, "2", "[0]", "[6,0,8,0,0,1]"),
        note(cause, "2", "[0]", "null")}) {
    EXPECT_FALSE(ParseFailure(forged, kSize)) << forged;
  }
}

TEST(FailureBoardTest, IgnoresPositionsAndLostRanksThatNoRankCanHaveSent) {
  auto planes = Planes();
  {
    auto options = Board("g");
    options.position = [] { return CallPosition{}; };
    FailureBoard board(planes[0], options);
    std::string forged;
    planes[1]->Answer(TopicOf("g/board"), [&](const std::string&) { return forged; });
    planes[2]->Answer(TopicOf("g/board"),
                      [](const std::string& question) { return question == "lost" ? "[0]" : "x"; });
    for (const std::string text : {"x", "{}", "[]", "[[1,2],3,true]", "[-1]", "[3]", "[[0]]"}) {
      forged = text;
      EXPECT_THAT(board.Positions().by_rank, ElementsAre(Pair(0, testing::_))) << forged;
      auto lost = board.Lost().by_rank;
      if (forged == "[]") lost.erase(1);  // it timed out
      EXPECT_THAT(lost, ElementsAre(Pair(2, ElementsAre(0)))) << forged;
    }
    forged = "\xff\xff\xff\xff forged, and as long as it likes to be: 48 bytes";
    EXPECT_FALSE(board.CallsAt(1).by_rank.contains(1));
    planes[1]->Unsubscribe(TopicOf("g/board"));
    planes[2]->Unsubscribe(TopicOf("g/board"));
    // Ranks that do not know the group have called nothing.
    const auto positions = board.Positions();
    EXPECT_THAT(positions.silent, testing::IsEmpty());
    for (const int r : {1, 2}) {
      EXPECT_EQ(positions.by_rank.at(r).call.sequence, 0);
      EXPECT_EQ(board.CallsAt(1).by_rank.at(r).last.sequence, 0);
    }
  }
  Leave(std::move(planes));
}

}  // namespace
}  // namespace lockstep::dist
