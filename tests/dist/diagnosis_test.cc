// Which ranks are at fault, from what the ranks know.
#include "dist/groups/diagnosis.h"

#include <gmock/gmock-matchers.h>

namespace lockstep::dist {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

Collective Call(int64_t number, CollectiveKind kind = CollectiveKind::kAllReduce) {
  return {kind, ReduceOp::kSum, DType::kF32, 0, 8, number};
}
CallPosition Behind(int64_t number) { return {Call(number), 3, false}; }
CallPosition In(int64_t number, int64_t step) { return {Call(number), step, true}; }

TEST(Diagnosis, ARankThatHasNotReachedTheCallIsAtFault) {
  const Diagnosis v = ExplainTimeout({{{0, In(7, 1)}, {1, Behind(6)}, {2, In(7, 1)}, {3, {}}}},
                                     {0, 1, 2, 3}, Call(7), 0, {1, 3}, seconds(2));
  EXPECT_THAT(v.culprits, ElementsAre(1, 3));
  EXPECT_EQ(v.reason,
            "ranks 1 and 3 did not take part within 2 s; rank 1 last called all_reduce #6 (f32[8], "
            "sum); rank 3 has called nothing");
  EXPECT_FALSE(v.others_know_better);
}

// Rank 1 asked; rank 0, through which all answers pass, has said nothing. Of rank 2 nothing is
// known.
TEST(Diagnosis, ThatARankDoesNotAnswerIsNoEvidenceAgainstOthers) {
  const Answers<CallPosition> only_mine = {.by_rank = {{1, In(7, 1)}}, .silent = {0}};
  const std::string silence =
      "; rank 0 does not answer (stopped, starved of memory, or cut off from the network)";
  const Diagnosis v = ExplainTimeout(only_mine, {0, 1, 2}, Call(7), 1, {0, 2}, seconds(2));
  EXPECT_THAT(v.culprits, ElementsAre(0));
  EXPECT_EQ(v.reason, "rank 0 did not take part within 2 s" + silence);
  EXPECT_FALSE(v.others_know_better);
  // Also in a group without rank 0, and in an exchange.
  for (const Collective& c : {Call(7), Call(7, CollectiveKind::kExchange)}) {
    const Diagnosis without = ExplainTimeout(only_mine, {1, 2}, c, 1, {2}, seconds(2));
    EXPECT_THAT(without.culprits, ElementsAre(0));
    EXPECT_EQ(without.reason, "it did not end within 2 s" + silence);
  }
  const Diagnosis both =
      ExplainTimeout({.by_rank = {{0, In(7, 1)}, {1, In(7, 1)}, {2, Behind(6)}}, .silent = {3}},
                     {0, 1, 2, 3}, Call(7), 0, {2, 3}, seconds(2));
  EXPECT_THAT(both.culprits, ElementsAre(2, 3));
  EXPECT_THAT(both.reason, AllOf(StartsWith("ranks 2 and 3 did not take part"),
                                 HasSubstr("; rank 2 last called all_reduce #6"),
                                 HasSubstr("; rank 3 does not answer")));
  // Before anybody was found silent, the run failed.
  EXPECT_THAT(ExplainTimeout({{{1, In(7, 1)}}}, {0, 1, 2}, Call(7), 1, {2}, seconds(2)).culprits,
              ElementsAre(2));
}

// Rank 1's messages are lost; it has what it needs, and waits at the next exchange or the next
// call.
TEST(Diagnosis, ARankWhoseMessagesDoNotArriveIsAtFault) {
  for (const CallPosition& ahead : {In(7, 2), Behind(7), In(8, 1)}) {
    const Answers<CallPosition> positions = {{{0, In(7, 1)}, {1, ahead}, {2, In(7, 1)}}};
    const Diagnosis v = ExplainTimeout(positions, {0, 1, 2}, Call(7), 0, {1}, seconds(2));
    EXPECT_THAT(v.culprits, ElementsAre(1));
    EXPECT_THAT(v.reason, StartsWith("nothing that rank 1 sent reached ranks 0 and 2"));
    EXPECT_FALSE(v.others_know_better);
    // Rank 1 waits too, for ranks that wait for it.
    const Diagnosis own = ExplainTimeout(positions, {0, 1, 2}, ahead.call, 1, {0, 2}, seconds(2));
    EXPECT_THAT(own.culprits, ElementsAre(1));
    EXPECT_TRUE(own.others_know_better);
  }
}

// In rounds: ranks 1 and 2 wait for rank 0, whose messages are lost, and rank 3 waits for rank 1.
TEST(Diagnosis, RanksThatWaitForOthersThatWaitAreNotAtFault) {
  const Answers<CallPosition> positions = {
      {{0, In(7, 2)}, {1, In(7, 1)}, {2, In(7, 1)}, {3, In(7, 2)}, {4, Behind(7)}}};
  for (const int behind : {1, 2}) {
    const Diagnosis v =
        ExplainTimeout(positions, {0, 1, 2, 3, 4}, Call(7), behind, {0}, seconds(2));
    EXPECT_THAT(v.culprits, ElementsAre(0));
    EXPECT_THAT(v.reason, StartsWith("nothing that rank 0 sent reached ranks 1 and 2"));
    EXPECT_FALSE(v.others_know_better);
  }
  EXPECT_TRUE(
      ExplainTimeout(positions, {0, 1, 2, 3, 4}, Call(7), 3, {1}, seconds(2)).others_know_better);
}

TEST(Diagnosis, TheOnlyOneThatIsBehindKnowsWhomItWaitsFor) {
  const Diagnosis v = ExplainTimeout({{{0, Behind(7)}, {1, Behind(7)}, {2, In(7, 2)}}}, {0, 1, 2},
                                     Call(7), 2, {1}, seconds(2));
  EXPECT_THAT(v.culprits, ElementsAre(1));
}

TEST(Diagnosis, IfAllWaitForEachOtherTheNetworkIsCut) {
  const Diagnosis v =
      ExplainTimeout({{{0, In(7, 1)}, {1, In(7, 1)}}}, {0, 1}, Call(7), 0, {1}, seconds(2));
  EXPECT_THAT(v.culprits, ElementsAre(1));
  EXPECT_THAT(v.reason, HasSubstr("is the network cut?"));
}

// Exchanges are numbered separately.
TEST(Diagnosis, ExchangesSayNothingOfHowFarARankIs) {
  const CallPosition in_exchange = {Call(90, CollectiveKind::kExchange), 1, true};
  const Diagnosis v = ExplainTimeout({{{0, In(7, 1)}, {1, in_exchange}, {2, In(7, 1)}}}, {0, 1, 2},
                                     Call(7), 0, {1}, seconds(2));
  EXPECT_THAT(v.culprits, ElementsAre(1));
  EXPECT_TRUE(v.others_know_better);
  const Diagnosis of_exchange = ExplainTimeout({{{0, in_exchange}, {1, Behind(3)}}}, {0, 1},
                                               in_exchange.call, 0, {1}, seconds(2));
  EXPECT_THAT(of_exchange.culprits, ElementsAre(1));
  EXPECT_FALSE(of_exchange.others_know_better);
}

TEST(Diagnosis, TheRankThatLostMostConnectionsIsGone) {
  const Diagnosis v = ExplainLost({{{0, {1}}, {1, {0}}, {2, {1}}}});
  EXPECT_THAT(v.culprits, ElementsAre(1));
  EXPECT_EQ(v.reason, "rank 1 is gone: connections to ranks 0 and 2 ended");
}

// Rank 1 timed out because of rank 0, and closed its connections.
TEST(Diagnosis, ASilentRankIsAtFaultBeforeThoseWhoseConnectionsEnd) {
  const Diagnosis v = ExplainLost({.by_rank = {{2, {1}}}, .silent = {0}});
  EXPECT_THAT(v.culprits, ElementsAre(0));
  EXPECT_THAT(v.reason, StartsWith("connections ended; rank 0 does not answer"));
  // One that is slow is not to blame for what others have seen.
  for (const int silent : {1, 3}) {
    EXPECT_THAT(ExplainLost({.by_rank = {{0, {1}}, {2, {1}}}, .silent = {silent}}).culprits,
                ElementsAre(1));
  }
}

TEST(Diagnosis, OfTwoEndsTheSilentOneIsGone) {
  EXPECT_THAT(ExplainLost({{{0, {2}}}}).culprits, ElementsAre(2));
  const Diagnosis both = ExplainLost({{{0, {2}}, {2, {0}}}});
  EXPECT_THAT(both.culprits, ElementsAre(0, 2));
  EXPECT_THAT(both.reason, AllOf(HasSubstr("between ranks 0 and 2"), HasSubstr("both are alive")));
}

}  // namespace
}  // namespace lockstep::dist
