// What ranks get when one of them makes a different call, is late, leaves or gives up: an error on
// every rank that names rank, operation and sequence number, and never wrong data (reliability
// promise 6).
#include "dist/control/failure.h"

#include <gmock/gmock-matchers.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "dist/process_group.h"
#include "tests/dist/ranks.h"
#include "tests/message_of.h"

namespace lockstep::dist::test {
namespace {

using lockstep::test::MessageOf;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Tensor Ones(int64_t n, DType dtype = DType::kF32) { return Tensor::Full({n}, 1, dtype); }

using Body = std::function<WorkPtr(ProcessGroup&)>;

struct Mismatch {
  const char* name;
  Body of_rank_0, of_others;
  // The calls of rank 0 and the others, as the error shows them.
  const char *call_0, *call_others;
};

void PrintTo(const Mismatch& m, std::ostream* out) { *out << m.name; }

const Mismatch kMismatches[] = {
    {"Count", [](ProcessGroup& g) { return g.AllReduce(Ones(100)); },
     [](ProcessGroup& g) { return g.AllReduce(Ones(50)); }, "all_reduce #2 (f32[100], sum)",
     "all_reduce #2 (f32[50], sum)"},
    {"LargeCount", [](ProcessGroup& g) { return g.AllReduce(Ones(3'000'000)); },
     [](ProcessGroup& g) { return g.AllReduce(Ones(2'999'999)); },
     "all_reduce #2 (f32[3000000], sum)", "all_reduce #2 (f32[2999999], sum)"},
    {"EmptyOnOne", [](ProcessGroup& g) { return g.AllReduce(Ones(0)); },
     [](ProcessGroup& g) { return g.AllReduce(Ones(1)); }, "(f32[0], sum)", "(f32[1], sum)"},
    // The same number of bytes.
    {"DType", [](ProcessGroup& g) { return g.AllReduce(Ones(64)); },
     [](ProcessGroup& g) { return g.AllReduce(Ones(64, DType::kI32)); },
     "all_reduce #2 (f32[64], sum)", "all_reduce #2 (i32[64], sum)"},
    {"Reduction", [](ProcessGroup& g) { return g.AllReduce(Ones(64)); },
     [](ProcessGroup& g) { return g.AllReduce(Ones(64), ReduceOp::kMax); }, "(f32[64], sum)",
     "(f32[64], max)"},
    {"Kind", [](ProcessGroup& g) { return g.AllReduce(Ones(64)); },
     [](ProcessGroup& g) { return g.Broadcast(Ones(64), 0); }, "all_reduce #2",
     "broadcast #2 (f32[64], from rank 0)"},
    {"Root", [](ProcessGroup& g) { return g.Broadcast(Ones(64), 0); },
     [](ProcessGroup& g) { return g.Broadcast(Ones(64), 1); }, "from rank 0", "from rank 1"},
    {"BroadcastCount", [](ProcessGroup& g) { return g.Broadcast(Ones(64), 0); },
     [](ProcessGroup& g) { return g.Broadcast(Ones(4), 0); }, "broadcast #2 (f32[64]",
     "broadcast #2 (f32[4]"},
    {"Barrier", [](ProcessGroup& g) { return g.Barrier(); },
     [](ProcessGroup& g) { return g.AllReduce(Ones(1)); }, "barrier #2", "all_reduce #2"},
    {"ExchangeAgainstCollective", [](ProcessGroup& g) { return g.Send(Ones(3), 1); },
     [](ProcessGroup& g) { return g.AllReduce(Ones(3)); }, "exchange #1", "all_reduce #2"},
};

class MismatchTest : public testing::TestWithParam<std::tuple<int, Mismatch>> {};

TEST_P(MismatchTest, IsAnErrorOnEveryRankAndChangesNoData) {
  const auto& [size, mismatch] = GetParam();
  std::atomic<int> thrown{0};
  const auto body = [&, &m = mismatch](ProcessGroup& g) {
    const Tensor bystander = Ones(1000);
    try {
      g.Barrier()->Wait();  // others may have left it, and failed, before this rank does
      (g.rank() == 0 ? m.of_rank_0 : m.of_others)(g)->Wait();
    } catch (const CollectiveError& e) {
      ++thrown;
      EXPECT_EQ(e.rank(), g.rank());
      EXPECT_THAT(e.what(), AllOf(HasSubstr(StrCat("rank ", g.rank(), ", group 'world', ")),
                                  HasSubstr("ranks do not call the same operation"),
                                  HasSubstr(m.call_0), HasSubstr(m.call_others)));
      // All later calls fail in the same way, and write nothing.
      EXPECT_THROW(g.AllReduce(bystander)->Wait(), CollectiveError);
      EXPECT_THAT(bystander.ToVector<float>(), Each(1.0f));
      return;
    }
    FAIL() << "rank " << g.rank() << " did not notice";
  };
  const auto errors = ErrorsOf(size, body);
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(thrown, size);
}

INSTANTIATE_TEST_SUITE_P(Groups, MismatchTest,
                         testing::Combine(testing::Values(2, 3), testing::ValuesIn(kMismatches)),
                         [](const auto& info) {
                           return StrCat(std::get<0>(info.param), std::get<1>(info.param).name);
                         });

// Reducers launch many buckets before they wait for the first.
TEST(FailureTest, SwappedBucketsAreAnErrorOnEveryRank) {
  std::atomic<int> thrown{0};
  const auto errors = ErrorsOf(3, [&](ProcessGroup& g) {
    std::vector<Tensor> buckets = {Ones(1000), Ones(2000), Ones(3000)};
    if (g.rank() == 2) std::swap(buckets[1], buckets[2]);
    std::vector<WorkPtr> work;
    try {
      for (const Tensor& bucket : buckets) work.push_back(g.AllReduce(bucket));
      work[0]->Wait();
      EXPECT_THAT(buckets[0].ToVector<float>(), Each(3.0f));
      work[1]->Wait();
    } catch (const CollectiveError& e) {
      ++thrown;
      EXPECT_EQ(e.cause(), CollectiveError::Cause::kMismatch);
      // Thrown by the call that failed, or by the next one if the failure is known before it
      // begins.
      EXPECT_THAT(e.sequence(), testing::AnyOf(2, 3));
      EXPECT_THAT(e.culprits(), ElementsAre(2));
      EXPECT_THAT(e.what(), AllOf(HasSubstr("ranks 0 and 1 all_reduce #2 (f32[2000], sum)"),
                                  HasSubstr("rank 2 all_reduce #2 (f32[3000], sum)")));
    }
    for (const Tensor& b : {buckets[1], buckets[2]}) EXPECT_THAT(b.ToVector<float>(), Each(1.0f));
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(thrown, 3);
}

TEST(FailureTest, UnequalPartsAreAnErrorOnEveryRank) {
  const auto errors = ErrorsOf(3, [&](ProcessGroup& g) {
    // Rank 1 expects one element more from rank 0 than it sends.
    const std::vector<int64_t> give(3, 2);
    std::vector<int64_t> take(3, 2);
    if (g.rank() == 1) take[0] = 3;
    g.AllToAll(Ones(6), Ones(g.rank() == 1 ? 7 : 6), give, take)->Wait();
    // Rank 2 is not involved, and learns of it here at the latest.
    g.Barrier()->Wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("all_to_all: rank 0 sends rank 1 2 elements"),
                                 HasSubstr("expects 3"))));
}

TEST(FailureTest, TransfersThatDoNotMatchAreAnErrorOnEveryRank) {
  const auto errors = ErrorsOf(3, [&](ProcessGroup& g) {
    if (g.rank() == 0) g.Send(Ones(10), 1)->Wait();
    if (g.rank() == 1) g.Receive(Ones(10, DType::kI32), 0)->Wait();
    g.Barrier()->Wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("exchange: rank 0 sends rank 1 10 elements"),
                                 HasSubstr("as many but of other dtypes"))));
}

TEST(FailureTest, ARankThatDoesNotTakePartInTimeIsNamed) {
  GroupOptions options;
  options.timeout = std::chrono::seconds(2);
  std::atomic<int> ended{0};
  std::atomic<bool> named{false};
  const auto errors = ErrorsOf(
      4,
      [&](ProcessGroup& g) {
        g.Barrier()->Wait();
        if (g.rank() % 2 == 1) {
          // Until the waiting ranks have given up.
          while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          g.Barrier()->Wait();
        }
        try {
          g.AllReduce(Ones(10))->Wait();
        } catch (const CollectiveError& e) {
          // Either of the two waiting ranks may be the first to report it.
          EXPECT_EQ(e.cause(), CollectiveError::Cause::kTimeout);
          EXPECT_THAT(e.what(), HasSubstr("ranks 1 and 3 did not take part within 2 s"));
          EXPECT_THAT(e.culprits(), ElementsAre(1, 3));
          named = true;
          ++ended;
          throw;
        }
      },
      options);
  EXPECT_TRUE(named);
  EXPECT_THAT(errors, Each(HasSubstr("ranks 1 and 3 did not take part within 2 s")));
}

TEST(FailureTest, ARankThatGivesUpIsNamedWithItsReason) {
  const auto errors = ErrorsOf(3, [&](ProcessGroup& g) {
    if (g.rank() == 1) g.Abort("the loss is not finite");
    g.AllReduce(Ones(10))->Wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 gave up: the loss is not finite")));
  EXPECT_THAT(errors[2], HasSubstr("rank 2, group 'world', all_reduce #1 (f32[10], sum)"));
}

TEST(FailureTest, AnExceptionThatDestroysTheGroupEndsTheOthers) {
  const auto errors = ErrorsOf(3, [&](ProcessGroup& g) {
    if (g.rank() == 2) throw InputError("shard 7 is truncated");
    g.AllReduce(Ones(10))->Wait();
  });
  EXPECT_EQ(errors[2], "shard 7 is truncated");
  for (const int r : {0, 1})
    EXPECT_THAT(errors[r], HasSubstr("rank 2 gave up: its group was destroyed"));
}

// Rank 1 waits for rank 0 in one group and for rank 2 in another. Rank 2 is the first to learn that
// rank 0 is at fault, and its exception destroys both groups.
TEST(FailureTest, ARankThatGivesUpAfterAFailureInADuplicateIsNotBlamed) {
  std::atomic<bool> heard{false};
  const auto errors = ErrorsOf(3, [&](ProcessGroup& g) {
    const auto other = g.Duplicate("other");
    const auto meet = [&] { other->Barrier()->Wait(); };
    if (g.rank() == 0) {
      meet();  // all have it
      g.Abort("the loss is not finite");
      while (!heard) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    if (g.rank() == 2) {
      meet();
      g.Barrier()->Wait();
    }
    // In the second barrier, or still in the first.
    const std::string error = MessageOf<CollectiveError>([&] {
      meet();
      meet();
    });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1, group 'other', barrier #"),
                             HasSubstr("rank 0 gave up: the loss is not finite")));
    heard = true;
  });
  EXPECT_THAT(errors[2], HasSubstr("rank 0 gave up: the loss is not finite"));
}

// What a rank hears of a failure elsewhere: the group and the call in which it happened.
TEST(FailureTest, OthersHearInWhichCallOfWhichGroup) {
  const Collective here{CollectiveKind::kBarrier, ReduceOp::kSum, DType::kU8, 0, 0, 7};
  const Collective there{CollectiveKind::kAllReduce, ReduceOp::kSum, DType::kF32, 0, 8, 12};
  Failure f = FailureOf(CollectiveError::Cause::kAborted, 2, "rank 2 gave up: bad data");
  f.group = "tp";
  f.operation = there;
  f.purpose = "bucket 1";
  const std::string error = "rank 0, group 'world', barrier #7: rank 2 gave up: bad data";
  const auto what = [&](const std::string& group, int rank, const Collective& call) {
    return std::string(ErrorOf(f, group, rank, call).what());
  };
  EXPECT_EQ(what("world", 0, here),
            error + " (in all_reduce #12 (f32[8], sum) of bucket 1 of group 'tp')");
  EXPECT_EQ(what("tp", 0, here),
            "rank 0, group 'tp', barrier #7: rank 2 gave up: bad data (in "
            "all_reduce #12 (f32[8], sum) of bucket 1)");
  EXPECT_EQ(what("tp", 0, there),
            "rank 0, group 'tp', all_reduce #12 (f32[8], sum): rank 2 gave up: bad data");
  // A call of the same number, kind and size in another group.
  f.operation = here;
  f.purpose = "";
  EXPECT_EQ(what("world", 0, here), error + " (in barrier #7 of group 'tp')");
  f.operation = {};  // before its first call
  EXPECT_EQ(what("world", 0, here), error + " (in group 'tp')");
  // The rank that reports it hears the same in its other groups.
  f.culprits = {1};
  f.reason = "it did not end";
  f.operation = there;
  EXPECT_EQ(what("dp", 2, here),
            "rank 2, group 'dp', barrier #7: it did not end (in all_reduce #12 "
            "(f32[8], sum) of group 'tp')");
  EXPECT_EQ(what("tp", 2, there),
            "rank 2, group 'tp', all_reduce #12 (f32[8], sum): it did not end");
  EXPECT_EQ(what("dp", 0, here),
            "rank 0, group 'dp', barrier #7: it did not end (reported by rank "
            "2 in all_reduce #12 (f32[8], sum) of group 'tp')");
  // The end of a process is in no group.
  EXPECT_STREQ(
      ErrorOf(FailureOf(CollectiveError::Cause::kLostRank, 2, "rank 2 is gone"), "world", 0, here)
          .what(),
      "rank 0, group 'world', barrier #7: rank 2 is gone");
}

// Rank 2 throws in a group without rank 0.
TEST(FailureTest, AnExceptionInAGroupOfOthersIsToldWithItsGroup) {
  std::atomic<int> summed{0};
  const auto errors = ErrorsOf(3, [&](ProcessGroup& g) {
    const auto part = g.Split(g.rank() == 0 ? "first" : "rest",
                              g.rank() == 0 ? std::vector<int>{0} : std::vector<int>{1, 2});
    part->AllReduce(Ones(4))->Wait();
    ++summed;
    if (g.rank() == 2) {
      while (summed < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      throw InputError("shard 7 is truncated");
    }
    if (g.rank() == 1) part->Barrier()->Wait();
    g.Barrier()->Wait();
  });
  EXPECT_EQ(errors[2], "shard 7 is truncated");
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 0, group 'world', barrier #"),
                               HasSubstr("rank 2 gave up: its group was destroyed by an exception "
                                         "(in all_reduce #1 (f32[4], sum) of group 'rest')")));
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 1, group 'rest', barrier #2"),
                               HasSubstr("(in all_reduce #1 (f32[4], sum))")));
}

TEST(FailureTest, LeavingWhileOthersContinueIsAnErrorForThem) {
  const auto errors = ErrorsOf(3, [&](ProcessGroup& g) {
    if (g.rank() != 1) g.AllReduce(Ones(10))->Wait();
  });
  EXPECT_EQ(errors[1], "");
  for (const int r : {0, 2}) {
    EXPECT_THAT(errors[r], AllOf(HasSubstr("rank 1 has left the group"),
                                 HasSubstr("ranks 0 and 2 all_reduce #1")));
  }
}

TEST(FailureTest, LeavingWaitsForSlowRanks) {
  std::atomic<bool> slow_is_done{false};
  const auto errors = ErrorsOf(2, [&](ProcessGroup& g) {
    const WorkPtr work = g.AllReduce(Ones(100'000));
    if (g.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      slow_is_done = true;
    }
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_TRUE(slow_is_done);
}

}  // namespace
}  // namespace lockstep::dist::test
