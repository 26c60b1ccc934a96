// The control plane: its tree, its messages, and how it ends. See also meeting_test.
#include "dist/control/control_plane.h"

#include <gmock/gmock-more-matchers.h>

#include <future>
#include <numeric>
#include <set>
#include <thread>

#include "dist/control/fold.h"
#include "tests/dist/crowd.h"
#include "tests/dist/in_process.h"
#include "tests/dist/ranks.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Crowd;
using test::Soon;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(RankTree, EveryRankIsBelowItsParentInARunOfRanks) {
  for (const int fan_out : {2, 3, 16}) {
    for (const int size : {1, 2, 15, 16, 17, 18, 100, 257, 300}) {
      const RankTree tree(size, fan_out);
      EXPECT_EQ(tree.Parent(0), -1);
      int edges = 0;
      for (int r = 0; r < size; ++r) {
        std::set<int> below = {r};
        int end = r + 1;
        for (const int child : tree.Children(r)) {
          ++edges;
          EXPECT_EQ(tree.Parent(child), r);
          EXPECT_EQ(child, end);  // the next subtree follows the one before
          end = tree.End(child);
        }
        EXPECT_EQ(tree.End(r), end);
      }
      EXPECT_EQ(edges, size - 1);
      // Following Next leads from every rank to every other one, at first up and then down.
      int digits = 1;
      for (int64_t n = fan_out; n < size; n *= fan_out) ++digits;
      for (int from = 0; from < size; ++from) {
        for (int to = 0; to < size; to += 7) {
          int steps = 0;
          for (int at = from; at != to; at = tree.Next(at, to)) ASSERT_LE(++steps, 2 * digits);
        }
      }
    }
  }
  EXPECT_THAT(RankTree(40).Children(0).size(), 15 + 2);
  EXPECT_THROW(RankTree(0), ArgumentError);
}

TEST(FrameTest, IsReadAsItWasWritten) {
  std::string bytes;
  const Frame a{Frame::Kind::kMessage, 3, 5, 77, 8, "body"}, b{Frame::Kind::kBeat, 1, 0, 0, 0, ""};
  Encode(a, &bytes);
  Encode(b, &bytes);
  Frame read;
  const size_t first = *Decode(bytes, &read);
  EXPECT_EQ(read, a);
  EXPECT_EQ(*Decode(bytes.substr(first), &read), kFrameHeader);
  EXPECT_EQ(read, b);
  for (size_t n = 0; n < first; ++n) EXPECT_EQ(*Decode(bytes.substr(0, n), &read), 0u) << n;
  bytes[4] = 99;  // an unknown kind
  EXPECT_EQ(Decode(bytes, &read), std::nullopt);
}

// Waits until the rank has heard of the run's failure; returns the reason.
std::string HeardBy(const ControlPlane& plane) {
  const auto deadline = Soon();
  while (!plane.failure() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  return plane.failure() ? plane.failure()->reason : "none";
}

std::function<bool()> Until(std::chrono::steady_clock::time_point deadline) {
  return [deadline] { return std::chrono::steady_clock::now() < deadline; };
}
std::vector<int> All(const Crowd& crowd) { return AllRanks(crowd.size()); }

TEST(ControlPlane, MessagesReachEveryRankInOrder) {
  constexpr int kRanks = 40, kMessages = 20;
  Crowd crowd(kRanks);
  ASSERT_TRUE(crowd.WaitForOpen(seconds(60)));
  std::mutex mutex;
  std::map<int, std::map<int, std::vector<uint64_t>>> got;  // by receiver and sender
  std::atomic<int> left = kRanks * kRanks * kMessages;
  const auto subscribe = [&](int r) {
    crowd.plane(r).Subscribe(1, [&, r](int from, uint64_t number, const std::string& body) {
      const std::lock_guard<std::mutex> lock(mutex);
      EXPECT_EQ(body, StrCat(from, " to ", r));
      got[r][from].push_back(number);
      --left;
    });
  };
  for (int r = 0; r < kRanks / 2; ++r) subscribe(r);
  for (uint64_t i = 0; i < kMessages; ++i) {
    for (int from = 0; from < kRanks; ++from) {
      for (int to = 0; to < kRanks; ++to) {
        crowd.plane(from).Send(to, 1, i, StrCat(from, " to ", to));
      }
    }
  }
  // The others subscribe when messages may already have arrived.
  for (int r = kRanks / 2; r < kRanks; ++r) subscribe(r);
  while (left > 0) std::this_thread::sleep_for(milliseconds(1));
  std::vector<uint64_t> in_order(kMessages);
  std::iota(in_order.begin(), in_order.end(), 0);
  for (const auto& [to, senders] : got) {
    for (const auto& [from, numbers] : senders) EXPECT_EQ(numbers, in_order);
  }
}

TEST(ControlPlane, QuestionsAreAnsweredByThoseWhoCan) {
  Crowd crowd(20);
  ASSERT_TRUE(crowd.WaitForOpen(seconds(60)));
  for (const int r : {0, 3, 17}) {
    crowd.plane(r).Answer(5, [r](const std::string& question) { return StrCat(question, r); });
  }
  for (const int asker : {0, 17, 19}) {
    const auto answers = crowd.plane(asker).Ask(All(crowd), 5, "rank ", Soon());
    EXPECT_THAT(answers.silent, testing::IsEmpty());
    EXPECT_EQ(answers.by_rank.size(), 20u);
    for (const auto& [r, text] : answers.by_rank) {
      EXPECT_EQ(text, r == 0 || r == 3 || r == 17 ? StrCat("rank ", r) : "");
    }
  }
}

// All of W ranks ask all others at once, as when a call of all times out.
TEST(ControlPlane, WhatAllWantToKnowIsAskedOnce) {
  constexpr int kRanks = 20;
  auto planes = MakeLocalPlanes(kRanks, {.loops = kRanks});
  for (const auto& plane : planes) plane->WaitUntilOpen();
  for (const auto& plane : planes) {
    plane->Answer(5, [r = plane->rank()](const std::string&) { return StrCat("rank ", r / 7); });
  }
  const auto before = planes[0]->traffic();
  // Rank 0 is busy until all have asked.
  std::promise<void> all_asked;
  planes[0]->Post([&] { all_asked.get_future().wait(); });
  std::vector<std::thread> threads;
  for (const auto& plane : planes) {
    threads.emplace_back([&plane] {
      const auto answers = plane->Ask(AllRanks(kRanks), 5, "", Soon());
      EXPECT_EQ(answers.by_rank.size(), static_cast<size_t>(kRanks));
      for (const auto& [rank, answer] : answers.by_rank)
        EXPECT_EQ(answer, StrCat("rank ", rank / 7));
    });
  }
  std::this_thread::sleep_for(milliseconds(300));
  all_asked.set_value();
  for (std::thread& t : threads) t.join();
  const auto after = planes[0]->traffic();
  EXPECT_LE(after.received + after.sent - before.received - before.sent, 10 * kRanks);
  while (!planes.empty()) planes.pop_back();
}

// Ranks of which one is stopped: 0 -+- 1, 2 --- 3
//                                +- 4 -+- 5, 6 --- 7
class StoppedRank {
 public:
  static constexpr int kRanks = 8;

  explicit StoppedRank(int stopped)
      : planes_(MakeLocalPlanes(kRanks, {.loops = kRanks, .fan_out = 2})) {
    for (const auto& plane : planes_) {
      plane->WaitUntilOpen();
      plane->Answer(5, [](const std::string&) { return "here"; });
    }
    std::promise<void> stops;
    planes_[static_cast<size_t>(stopped)]->Post([this, &stops] {
      stops.set_value();
      while (stopped_) std::this_thread::sleep_for(milliseconds(1));
    });
    stops.get_future().wait();
  }
  ~StoppedRank() {
    GoOn();
    while (!planes_.empty()) planes_.pop_back();
  }

  void GoOn() { stopped_ = false; }
  Answers<std::string> Ask(int asker, const std::vector<int>& ranks,
                           milliseconds patience = seconds(3)) {
    return planes_[static_cast<size_t>(asker)]->Ask(ranks, 5, "",
                                                    std::chrono::steady_clock::now() + patience);
  }

 private:
  std::atomic<bool> stopped_{true};
  std::vector<std::shared_ptr<ControlPlane>> planes_;
};

TEST(ControlPlane, WhoDoesNotAnswerIsKnownFromThoseOfWhomNothingIs) {
  for (const auto& [stopped, asker, silent] :
       {std::tuple(0, 1, 0), {0, 7, 0}, {4, 7, 4}, {6, 7, 6}, {4, 1, 4}, {7, 1, 7}}) {
    StoppedRank ranks(stopped);
    const auto answers = ranks.Ask(asker, AllRanks(StoppedRank::kRanks));
    EXPECT_THAT(answers.silent, ElementsAre(silent)) << asker << " asks";
    EXPECT_FALSE(answers.by_rank.contains(stopped));
    EXPECT_EQ(answers.by_rank.at(asker), "here");
  }
}

// The members of a group are not blamed for a rank outside of it that passes their answers on.
TEST(ControlPlane, AStoppedRankOnTheWayToAGroupIsNamed) {
  for (const auto& [stopped, asker, silent] : {std::tuple(4, 1, 4), {6, 5, 6}, {6, 1, 6}}) {
    StoppedRank ranks(stopped);
    const std::vector<int> members = {1, 3, 5, 7};
    const auto answers = ranks.Ask(asker, members);
    EXPECT_THAT(answers.silent, ElementsAre(silent)) << asker << " asks";
    for (const auto& [rank, answer] : answers.by_rank) {
      EXPECT_THAT(members, testing::Contains(rank));
      EXPECT_EQ(answer, "here") << rank;
    }
    EXPECT_TRUE(answers.by_rank.contains(3));
    EXPECT_FALSE(answers.by_rank.contains(7));
  }
}

// A rank that is late is asked again, also by those between which and it there is no other.
TEST(ControlPlane, Rank0IsAskedAgainBeforeItIsNamed) {
  for (const int asker : {1, 3}) {
    StoppedRank ranks(0);
    auto answers = std::async(std::launch::async, [&] {
      return ranks.Ask(asker, AllRanks(StoppedRank::kRanks), milliseconds(300));
    });
    std::this_thread::sleep_for(milliseconds(500));
    ranks.GoOn();
    EXPECT_THAT(answers.get().silent, testing::IsEmpty()) << asker << " asks";
  }
}

TEST(ControlPlane, AFoldCombinesInTheOrderOfRanksOverAnyGroup) {
  Crowd crowd(40);
  ASSERT_TRUE(crowd.WaitForOpen(seconds(60)));
  for (const std::vector<int>& members :
       {All(crowd), std::vector<int>{7}, std::vector<int>{0, 39}, std::vector<int>{3, 17, 18, 35},
        std::vector<int>{1, 5, 9, 13, 17, 21, 25, 29, 33, 37}}) {
    std::string expected;
    for (const int r : members) expected += StrCat(r, ";");
    std::vector<std::unique_ptr<Fold>> folds;
    for (const int r : members) {
      folds.push_back(std::make_unique<Fold>(
          crowd.plane(r), StrCat("group of ", members.size()), members,
          [](const std::string& a, const std::string& b) { return a + b; }, /*fan_out=*/3));
    }
    for (int round = 0; round < 3; ++round) {
      std::vector<std::thread> threads;
      for (size_t i = 0; i < members.size(); ++i) {
        threads.emplace_back(
            [&, i] { EXPECT_EQ(folds[i]->Run(StrCat(members[i], ";"), Until(Soon())), expected); });
      }
      for (std::thread& t : threads) t.join();
    }
    // One rank stays away.
    if (members.size() > 1) {
      EXPECT_EQ(folds[0]->Run("", Until(std::chrono::steady_clock::now() + milliseconds(50))),
                std::nullopt);
    }
  }
}

TEST(ControlPlane, TheEndOfAnyRankReachesAllOthers) {
  for (const int victim : {0, 16, 17, 39}) {
    Crowd crowd(40);
    ASSERT_TRUE(crowd.WaitForOpen(seconds(60)));
    crowd.Kill(victim);
    ASSERT_TRUE(crowd.WaitForFailures(39, seconds(60)));
    for (int r = 0; r < 40; ++r) {
      if (r == victim) continue;
      EXPECT_EQ(crowd.plane(r).failure()->reason,
                StrCat("rank ", victim, " is gone: its process ended"));
    }
  }
}

TEST(ControlPlane, RanksThatLeaveAreNoFailure) {
  auto planes = MakeLocalPlanes(20);
  for (const auto& plane : planes) plane->WaitUntilOpen();
  // Each on its own thread, in any order: a rank waits for those below it.
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (auto& plane : planes) plane->AddListener([&](const Failure&) { ++failures; });
  for (auto& plane : planes)
    threads.emplace_back([mine = std::move(plane)]() mutable { mine.reset(); });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failures, 0);
}

// 0 -+- 1
//    +- 2 --- 3
TEST(ControlPlane, ARankThatHasLeftPassesOnWhatThoseBelowItSay) {
  auto planes = MakeLocalPlanes(4, {.loops = 4, .fan_out = 2});
  for (const auto& plane : planes) plane->WaitUntilOpen();
  std::promise<std::string> arrived;
  planes[1]->Subscribe(7, [&](int, uint64_t, const std::string& body) { arrived.set_value(body); });
  const auto leaves = std::async(std::launch::async, [&] { planes[2].reset(); });
  EXPECT_EQ(leaves.wait_for(seconds(4)), std::future_status::timeout);
  planes[3]->Send(1, 7, 0, "still here");
  EXPECT_EQ(arrived.get_future().get(), "still here");
  for (const int r : {0, 1, 3}) EXPECT_EQ(planes[static_cast<size_t>(r)]->failure(), std::nullopt);
  planes[3].reset();
  leaves.wait();
  while (!planes.empty()) planes.pop_back();
}

TEST(ControlPlane, ARankThatEndsByAnExceptionWaitsForNobody) {
  for (const size_t thrower : {0, 2, 3}) {
    auto planes = MakeLocalPlanes(4, {.fan_out = 2});
    for (const auto& plane : planes) plane->WaitUntilOpen();
    EXPECT_EQ(MessageOf([&] {
                const auto mine = std::move(planes[thrower]);
                throw ArgumentError("no such file");
              }),
              "no such file");
    for (const auto& plane : planes) {
      if (plane == nullptr) continue;
      EXPECT_EQ(HeardBy(*plane),
                StrCat("rank ", thrower, " gave up: an exception ended its part in the run"));
    }
  }
}

TEST(ControlPlane, WhatIsTooLongEndsTheRunAndNoProcess) {
  const std::string too_long(3 << 20, 'x');
  for (const bool is_message : {true, false}) {
    auto planes = MakeLocalPlanes(3);
    for (const auto& plane : planes) plane->WaitUntilOpen();
    if (is_message) {
      planes[2]->Send(1, 7, 0, too_long);
    } else {
      planes[2]->BeginPause(too_long);
      planes[2]->Fail(FailureOf(CollectiveError::Cause::kAborted, 2, too_long));
    }
    for (const auto& plane : planes) {
      const std::string reason = HeardBy(*plane);
      if (is_message) {
        EXPECT_EQ(reason,
                  "rank 2 gave up: its message of 3145728 bytes to rank 1 is longer than 2097152");
      } else {
        EXPECT_THAT(reason, AllOf(testing::StartsWith("xxx"), testing::EndsWith("x ...")));
        EXPECT_LE(reason.size(), 64u << 10);
      }
    }
    while (!planes.empty()) planes.pop_back();
  }
}

TEST(ControlPlane, OfAnswersThatFitNoMessageTheLongestAreLeftOut) {
  Crowd crowd(20);
  ASSERT_TRUE(crowd.WaitForOpen(seconds(60)));
  const auto answer = [](int r) {
    return std::string(r % 2 == 0 ? 300'000 : 5, static_cast<char>('a' + r));
  };
  for (int r = 0; r < 20; ++r) {
    crowd.plane(r).Answer(5, [text = answer(r)](const std::string&) { return text; });
  }
  const auto answers = crowd.plane(19).Ask(All(crowd), 5, "", Soon());
  EXPECT_THAT(answers.silent, testing::IsEmpty());
  for (int r = 0; r < 20; ++r) {
    EXPECT_EQ(answers.by_rank.at(r), r % 2 == 0 ? "?" : answer(r)) << r;
  }
}

// However many ranks pause, a rank says what has changed 20 times a second.
TEST(ControlPlane, PausesOfManyRanksAreToldTogether) {
  constexpr int kRanks = 40;
  Crowd crowd(kRanks);
  ASSERT_TRUE(crowd.WaitForOpen(seconds(60)));
  const auto count = [&] {
    const auto traffic = crowd.plane(0).traffic();
    return traffic.received + traffic.sent;
  };
  const auto before = count();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    for (int r = 0; r < kRanks; ++r) crowd.plane(r).BeginPause("printing");
    std::this_thread::sleep_for(milliseconds(70));
    for (int r = 0; r < kRanks; ++r) crowd.plane(r).EndPause();
  }
  const auto told = count() - before;
  const auto intervals = (std::chrono::steady_clock::now() - begin) / milliseconds(50) + 2;
  EXPECT_GT(told, 0);
  EXPECT_LE(told, intervals * 2 * std::ssize(RankTree(kRanks).Children(0)));

  // All know of the longest one, whichever ranks still pause.
  const auto expect_longest = [&](int pausing) {
    for (int r = 0; r < kRanks; ++r) {
      const auto longest = [&] {
        const auto pause = crowd.plane(r).pause(9);
        return pause ? pause->rank : -1;
      };
      const auto deadline = Soon();
      while (longest() != pausing && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      EXPECT_EQ(longest(), pausing) << "as rank " << r << " knows";
    }
  };
  expect_longest(-1);
  for (const auto& [r, topic] : {std::pair(39, 9), {33, 0}, {0, 9}}) {
    crowd.plane(r).BeginPause("writing", static_cast<uint64_t>(topic));
    std::this_thread::sleep_for(seconds(1));
  }
  expect_longest(39);
  crowd.plane(39).EndPause(9);
  expect_longest(33);
  crowd.plane(33).EndPause(0);
  expect_longest(0);
  EXPECT_EQ(crowd.plane(5).pause(8), std::nullopt);
  crowd.plane(0).EndPause(9);
  expect_longest(-1);
}

// As by Ctrl-Z and fg, or a scheduler that suspends the job.
TEST(ControlPlane, ARunThatWasStoppedAsAWholeGoesOn) {
  constexpr int kRanks = 8;
  auto planes = MakeLocalPlanes(kRanks, {.loops = kRanks, .heartbeat = seconds(3), .fan_out = 2});
  for (const auto& plane : planes) plane->WaitUntilOpen();
  std::this_thread::sleep_for(seconds(3));  // so that silence counts
  std::atomic<bool> stopped{true};
  for (const auto& plane : planes) {
    plane->Post([&] {
      while (stopped) std::this_thread::sleep_for(milliseconds(1));
    });
  }
  std::this_thread::sleep_for(seconds(4));
  stopped = false;
  std::this_thread::sleep_for(seconds(4));
  for (const auto& plane : planes) EXPECT_EQ(plane->failure(), std::nullopt);
  while (!planes.empty()) planes.pop_back();
}

TEST(ControlPlane, ARankThatIsSilentIsNamed) {
  // Rank 2's loop is busy, as if its process was stopped.
  auto planes = MakeLocalPlanes(3, {.loops = 3, .heartbeat = seconds(6)});
  for (const auto& plane : planes) plane->WaitUntilOpen();
  std::atomic<bool> told{false};
  planes[0]->AddListener([&](const Failure&) { told = true; });
  planes[2]->Post([&] {
    while (!told) std::this_thread::sleep_for(milliseconds(1));
  });
  while (!told) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_THAT(planes[0]->failure()->reason,
              AllOf(HasSubstr("rank 2 is stalled: its process has shown no sign of life for 4 s"),
                    HasSubstr("with a heartbeat limit of 6 s")));
  while (!planes.empty()) planes.pop_back();
}

TEST(ControlPlane, WhatAListenerHasRunApartHoldsUpNobodyElse) {
  auto planes = MakeLocalPlanes(3, {.loops = 3});
  for (const auto& plane : planes) plane->WaitUntilOpen();
  std::promise<void> goes_on, heard, later;
  planes[1]->AddListener(
      [&](const Failure&) { planes[1]->PostBlocking([&] { goes_on.get_future().wait(); }); });
  planes[1]->AddListener([&](const Failure&) { heard.set_value(); });
  const int removed = planes[1]->AddListener([&](const Failure&) { ADD_FAILURE(); });
  planes[1]->RemoveListener(removed);
  planes[0]->Fail(FailureOf(CollectiveError::Cause::kAborted, 0, "enough"));
  EXPECT_EQ(heard.get_future().wait_for(seconds(60)), std::future_status::ready);
  // One that comes later hears at once, and can be removed.
  const auto more = std::async(std::launch::async, [&] {
    planes[1]->RemoveListener(planes[1]->AddListener([&](const Failure&) { later.set_value(); }));
  });
  EXPECT_EQ(more.wait_for(seconds(60)), std::future_status::ready);
  EXPECT_EQ(later.get_future().wait_for(seconds(0)), std::future_status::ready);
  goes_on.set_value();
  while (!planes.empty()) planes.pop_back();
}

TEST(ControlPlane, LookingForRank0BlocksNothing) {
  std::promise<void> found;
  ControlPlane::Options o;
  o.rank = 1;
  o.claim = Claim::Of(2);
  o.root = [&]() -> RootAddress {
    found.get_future().wait();
    throw ConnectionError("the host 'node0' cannot be resolved");
  };
  o.timeout = milliseconds(1);
  ControlPlane plane(std::make_shared<EventLoop>(), std::move(o));
  const auto ends = std::async(std::launch::async, [&] {
    EXPECT_THAT(MessageOf<ConnectionError>([&] { plane.WaitUntilOpen(); }),
                HasSubstr("rank 0 has not been found"));
  });
  EXPECT_EQ(ends.wait_for(seconds(60)), std::future_status::ready);
  found.set_value();
}

TEST(ControlPlane, TheHeartbeatIsChecked) {
  for (const int heartbeat : {-1, 1, 99}) {
    EXPECT_THAT(MessageOf([&] { MakeLocalPlanes(1, {.heartbeat = milliseconds(heartbeat)}); }),
                HasSubstr(StrCat("the heartbeat must be 0 (off) or at least 100 ms, got ",
                                 heartbeat, " ms")));
  }
}

}  // namespace
}  // namespace lockstep::dist
