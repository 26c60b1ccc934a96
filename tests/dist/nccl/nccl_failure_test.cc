// What ranks on GPUs get when one of them makes a different call, is late, leaves or gives up, or
// when NCCL breaks: reliability promise 6, although NCCL compares nothing.
#include <gmock/gmock-matchers.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/io/file.h"
#include "dist/flight/flight_recorder.h"
#include "dist/flight/flight_verdict.h"
#include "dist/groups/comparison.h"
#include "dist/groups/nccl_comm.h"
#include "dist/groups/nccl_group.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(NcclFailureTest, FullCheckComparesEachCallBeforeItStarts) {
  GroupOptions options;
  options.check_every_call = true;
  std::atomic<int> thrown{0};
  RUN_OR_SKIP(
      2,
      [&](ProcessGroup& g) {
        const Tensor x = Ones(g, 100);
        g.AllReduce(x)->Synchronize();
        try {
          g.AllReduce(g.rank() == 0 ? x : x.Slice(0, 0, 50));
          FAIL() << "rank " << g.rank() << " did not notice";
        } catch (const CollectiveError& e) {
          ++thrown;
          EXPECT_EQ(e.cause(), CollectiveError::Cause::kMismatch);
          EXPECT_EQ(e.sequence(), 2);
          EXPECT_THAT(e.what(), AllOf(HasSubstr("rank 0 all_reduce #2 (f32[100], sum)"),
                                      HasSubstr("rank 1 all_reduce #2 (f32[50], sum)")));
        }
        EXPECT_THAT(x.ToVector<float>(), Each(2.0f));
        EXPECT_THROW(g.Barrier(), CollectiveError);
      },
      options);
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(thrown, 2);
}

// As of a rank that skips a block of a sharded model: by the full check at once, or else before the
// update.
TEST(NcclFailureTest, CallsForDifferentPurposesDiffer) {
  for (const bool check : {true, false}) {
    GroupOptions options;
    options.check_every_call = check;
    RUN_OR_SKIP(
        3,
        [&](ProcessGroup& g) {
          const Tensor x = Ones(g, 100);
          g.AllReduce(x, ReduceOp::kSum, g.rank() == 1 ? "block 3" : "block 0")->Synchronize();
          g.CheckInStep();
        },
        options);
    EXPECT_THAT(
        errors,
        Each(HasSubstr(check ? "rank 1 makes this call for another purpose than the other ranks"
                             : "in their purpose, such as another block")));
  }
}

TEST(NcclFailureTest, FullCheckComparesPartsAndTransfers) {
  GroupOptions options;
  options.check_every_call = true;
  for (const bool parts : {true, false}) {
    RUN_OR_SKIP(
        2,
        [&](ProcessGroup& g) {
          if (parts) {
            const std::vector<int64_t> give = {2, 2};
            const std::vector<int64_t> take = {g.rank() == 1 ? 3 : 2, 2};
            g.AllToAll(Ones(g, 4), Ones(g, g.rank() == 1 ? 5 : 4), give, take)->Synchronize();
          } else if (g.rank() == 0) {
            g.Send(Ones(g, 10), 1)->Synchronize();
          } else {
            g.Receive(Ones(g, 9), 0)->Synchronize();
          }
        },
        options);
    EXPECT_THAT(errors,
                Each(HasSubstr(parts ? "rank 0 sends rank 1 2 elements, which expects 3"
                                     : "rank 0 sends rank 1 10 elements, which expects 9")));
  }
}

// Without it, calls differ that NCCL does not get wrong, and the comparison before the update finds
// the first of them.
TEST(NcclFailureTest, CheckInStepFindsTheFirstDifference) {
  std::atomic<int> thrown{0};
  RUN_OR_SKIP(2, [&](ProcessGroup& g) {
    const Tensor x = Ones(g, 100);
    g.AllReduce(x)->Wait();
    g.CheckInStep();
    // Nothing is sent for either.
    if (g.rank() == 0) {
      g.AllReduce(x.Slice(0, 0, 0));
    } else {
      g.AllGather(x.Slice(0, 0, 0), x.Slice(0, 0, 0));
    }
    g.AllReduce(x)->Wait();
    try {
      g.CheckInStep();
    } catch (const CollectiveError& e) {
      ++thrown;
      EXPECT_THAT(e.what(), AllOf(HasSubstr("rank 0 all_reduce #3 (f32[0], sum)"),
                                  HasSubstr("rank 1 all_gather #3 (f32[0])")));
    }
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(thrown, 2);
}

TEST(NcclFailureTest, ARankThatCallsLessIsNamedInTime) {
  GroupOptions options;
  options.timeout = std::chrono::seconds(3);
  std::atomic<bool> ended{false};
  RUN_OR_SKIP(
      2,
      [&](ProcessGroup& g) {
        const Tensor x = Ones(g, 100);
        g.AllReduce(x)->Synchronize();
        if (g.rank() == 1) {
          while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          g.AllReduce(x)->Synchronize();
        }
        try {
          g.AllReduce(x)->Synchronize();
        } catch (const CollectiveError& e) {
          ended = true;
          EXPECT_EQ(e.cause(), CollectiveError::Cause::kTimeout);
          EXPECT_THAT(e.culprits(), ElementsAre(1));
          throw;
        }
      },
      options);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("did not end within 3 s; rank 1 did not take part, its "
                                           "last call was all_reduce #1 (f32[100], sum)"))));
}

TEST(NcclFailureTest, ARankThatGivesUpEndsTheOthers) {
  RUN_OR_SKIP(2, [&](ProcessGroup& g) {
    const Tensor x = Ones(g, 100);
    g.AllReduce(x)->Wait();
    if (g.rank() == 1) {
      g.Abort("the loss is not finite");
      g.Barrier();
    } else {
      g.AllReduce(x)->Synchronize();
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 gave up: the loss is not finite")));
}

// As a reducer does when a backward fails because of another rank.
TEST(NcclFailureTest, ARankThatGivesUpAfterAFailureIsNotBlamed) {
  const std::string parent = JoinPath(testing::TempDir(), "nccl_flight");
  RemoveTree(parent);
  MakeDirectories(parent);
  const std::string folder = JoinPath(parent, "flight");
  GroupOptions options;
  options.timeout = std::chrono::seconds(3);
  options.recorder = std::make_shared<FlightRecorder>(folder, 0, 2);
  std::atomic<bool> ended{false};
  RUN_OR_SKIP(
      2,
      [&](ProcessGroup& g) {
        if (g.rank() == 1) {
          while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        EXPECT_THROW(g.AllReduce(Ones(g, 100))->Synchronize(), CollectiveError);
        g.Abort("backward failed on rank 0");
        ended = true;
      },
      options);
  EXPECT_THAT(errors, Each(""));
  options.recorder.reset();  // waits for the file
  const auto records = ReadFlightRecords(folder);
  EXPECT_EQ(records.at(0).groups.size(), 1u);
  const FlightVerdict verdict = FindVerdict(records);
  EXPECT_THAT(verdict.culprits, ElementsAre(1));
  EXPECT_THAT(verdict.summary, HasSubstr("rank 1 did not take part"));
}

TEST(NcclFailureTest, LeavingWhileOthersContinueIsAnErrorForThem) {
  RUN_OR_SKIP(2, [&](ProcessGroup& g) {
    if (g.rank() == 0) g.AllReduce(Ones(g, 10))->Synchronize();
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 has left the group"));
  EXPECT_EQ(errors[1], "");
}

// One that is named in a part of the ranks ends all groups of all ranks, those that are busy in
// another part too, and those that are idle.
TEST(NcclFailureTest, AFailureInAPartEndsAllGroups) {
  GroupOptions options;
  options.timeout = std::chrono::seconds(3);
  std::atomic<int> ended{0};
  RUN_OR_SKIP(
      4,
      [&](ProcessGroup& g) {
        const bool upper = g.rank() >= 2;
        const auto part = g.Split(upper ? "upper" : "lower",
                                  upper ? std::vector<int>{2, 3} : std::vector<int>{0, 1});
        const auto idle = part->Duplicate(part->name() + ".idle");
        const Tensor x = Ones(g, 100);
        if (g.rank() == 3) {
          while (ended < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        try {
          while (true) part->AllReduce(x)->Synchronize();
        } catch (const CollectiveError& e) {
          EXPECT_EQ(e.cause(), CollectiveError::Cause::kTimeout);
          EXPECT_THAT(e.culprits(), ElementsAre(3));
          EXPECT_THAT(MessageOf<CollectiveError>([&] { idle->Barrier(); }),
                      HasSubstr("rank 3 did not take part"));
          ++ended;
          throw;
        }
      },
      options);
  for (const int r : {0, 1, 2}) {
    EXPECT_THAT(errors[static_cast<size_t>(r)],
                AllOf(HasSubstr(StrCat("rank ", r, ", group '", r < 2 ? "lower" : "upper", "'")),
                      HasSubstr("rank 3 did not take part, its last call was all_gather #1")));
  }
}

// ---- A communicator that breaks: NCCL reports it asynchronously ----

// Makes an NCCL communicator as a group does, but without a watchdog.
std::unique_ptr<NcclComm> BareComm(const GpuRank& r, Comparison& comparison) {
  ncclUniqueId id = {};
  if (r.control->rank() == 0) id = NcclComm::NewId();
  const std::string mine = r.control->rank() == 0 ? std::string(id.internal, sizeof(id)) : "";
  const auto parties = comparison.Run(mine, [] { return true; });
  std::memcpy(id.internal, parties->front().text.data(), sizeof(id));
  return std::make_unique<NcclComm>(id, r.control->rank(), r.control->size(), r.options.device,
                                    std::chrono::seconds(30), nullptr);
}

TEST(NcclFailureTest, AnAsynchronousErrorIsReportedAndAbortEndsHangingWork) {
  RUN_OR_SKIP(2, [](const GpuRank& r) {
    Comparison comparison(r.control, "test", AllRanks(2));
    const auto comm = BareComm(r, comparison);
    const auto meet = [&] { comparison.Run("", [] { return true; }); };
    if (r.control->rank() == 1) {
      comm->Abort();
      meet();
      return;
    }
    EXPECT_EQ(comm->AsyncError(), std::nullopt);
    const Stream stream = CurrentStream(r.options.device);
    const Tensor x = Tensor::Full({1000}, 1, DType::kF32, r.options.device);
    std::optional<std::string> error;
    try {
      comm->AllReduce(x, ReduceOp::kSum, stream);
    } catch (const Error& of_launch) {  // the news came first
      error = of_launch.what();
    }
    while (!error) error = comm->AsyncError();
    EXPECT_THAT(*error, HasSubstr("remote process exited"));
    comm->Abort();
    Synchronize(stream);  // hangs unless Abort ended the work
    EXPECT_EQ(comm->AsyncError(), std::nullopt) << "there is nothing left to fail";
    EXPECT_THAT(MessageOf<Error>([&] { comm->AllReduce(x, ReduceOp::kSum, stream); }),
                HasSubstr("the communicator was aborted"));
    meet();
  });
  EXPECT_THAT(errors, Each(""));
}

// A rank whose communicator is gone, but which is not known to be dead: the others do not wait for
// the timeout (5 minutes), and get their memory back.
TEST(NcclFailureTest, ARankWhoseCommunicatorBreaksEndsTheOthers) {
  std::atomic<int> thrown{0};
  RUN_OR_SKIP(3, [&](GpuRank r) {
    if (r.control->rank() == 1) {
      Comparison comparison(r.control, r.options.name, AllRanks(3));
      BareComm(r, comparison)->Abort();
      // The process, and its connections on the host, stay alive.
      while (thrown < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const auto group = MakeNcclGroup(std::move(r.control), r.options);
    const Tensor x = Ones(*group, 1000);
    const auto begin = std::chrono::steady_clock::now();
    try {
      group->AllReduce(x)->Synchronize();
    } catch (const CollectiveError& e) {
      EXPECT_EQ(e.cause(), CollectiveError::Cause::kLostRank);
      EXPECT_THAT(e.what(), AllOf(HasSubstr("all_reduce #1 (f32[1000], sum)"),
                                  HasSubstr("remote process exited"),
                                  HasSubstr("; rank 1 has no group 'world'")));
      EXPECT_THAT(e.culprits(), ElementsAre(1));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
      ++thrown;
      throw;
    }
  });
  EXPECT_EQ(thrown, 2);
  EXPECT_THAT(errors[0], HasSubstr("NCCL"));
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[2], HasSubstr("NCCL"));
}

}  // namespace
}  // namespace lockstep::dist
