// Whom ranks on GPUs name that wait in vain: in an exchange, and while a group connects.
#include <gmock/gmock-matchers.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "dist/groups/comparison.h"
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
using testing::Not;

// As in a pipeline: rank 0 does not send, so that rank 1 does not either; each pair of neighbours
// has a group of its own, or all ranks share one.
TEST(NcclTimeoutTest, TheRankThatAnExchangeWaitsForIsNamed) {
  GroupOptions options;
  options.timeout = std::chrono::seconds(3);
  for (const bool shared : {true, false}) {
    std::atomic<int> ended{0};
    RUN_OR_SKIP(
        3,
        [&](ProcessGroup& g) {
          using Ranks = std::vector<int>;
          std::shared_ptr<ProcessGroup> first, second;
          if (!shared) {
            first = g.Split("0_to_1", g.rank() < 2 ? Ranks{0, 1} : Ranks{2});
            second = g.Split("1_to_2", g.rank() > 0 ? Ranks{1, 2} : Ranks{0});
            // The first transfer is in time.
            if (g.rank() == 1) second->Send(Ones(g, 10), 1)->Synchronize();
            if (g.rank() == 2) second->Receive(Ones(g, 10), 0)->Synchronize();
          }
          if (g.rank() == 0) {
            while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            return;
          }
          ProcessGroup& from = shared ? g : g.rank() == 1 ? *first : *second;
          try {
            from.Receive(Ones(g, 100), shared ? g.rank() - 1 : 0, "activations")->Synchronize();
          } catch (const CollectiveError& e) {
            ++ended;
            EXPECT_EQ(e.cause(), CollectiveError::Cause::kTimeout);
            EXPECT_THAT(e.culprits(), ElementsAre(0)) << e.what();
            throw;
          }
        },
        options);
    EXPECT_EQ(errors[0], "");
    for (const int r : {1, 2}) {
      const std::string group = shared ? "world" : r == 1 ? "0_to_1" : "1_to_2";
      EXPECT_THAT(errors[static_cast<size_t>(r)],
                  AllOf(HasSubstr(StrCat("rank ", r, ", group '", group, "', exchange #")),
                        HasSubstr(" of activations: it did not end within 3 s; rank 0 did not take "
                                  "part, ")));
    }
  }
}

// Rank 2 needs both others; rank 1 waits for rank 0 itself. The time of rank 2 is up first.
TEST(NcclTimeoutTest, ARankThatWaitsIsNotNamedBesideOneThatDoesNot) {
  GroupOptions options;
  options.timeout = std::chrono::seconds(3);
  std::atomic<int> ended{0};
  RUN_OR_SKIP(
      3,
      [&](ProcessGroup& g) {
        if (g.rank() == 0) {
          while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        std::vector<Transfer> transfers = {{Transfer::Direction::kReceive, Ones(g, 100), 0}};
        if (g.rank() == 2) {
          transfers.push_back({Transfer::Direction::kReceive, Ones(g, 100), 1});
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
        }
        try {
          g.Exchange(std::move(transfers))->Synchronize();
        } catch (const CollectiveError& e) {
          ++ended;
          EXPECT_THAT(e.culprits(), ElementsAre(0)) << e.what();
          throw;
        }
      },
      options);
  EXPECT_EQ(errors[0], "");
  for (const size_t r : {1, 2}) {
    EXPECT_THAT(errors[r], AllOf(HasSubstr("it did not end within 3 s; rank 0 did not take part, "),
                                 Not(HasSubstr("rank 1 did not take part"))));
  }
}

// Both receive first: each waits for the other, and says so.
TEST(NcclTimeoutTest, RanksThatWaitForEachOtherAreToldSo) {
  GroupOptions options;
  options.timeout = std::chrono::seconds(3);
  RUN_OR_SKIP(
      2,
      [&](ProcessGroup& g) {
        const int other = 1 - g.rank();
        g.Receive(Ones(g, 100), other)->Synchronize();
        g.Send(Ones(g, 100), other)->Synchronize();
      },
      options);
  EXPECT_THAT(errors,
              Each(HasSubstr(" did not take part, it waits in exchange #1 of group 'world'")));
}

// A rank that does not make the group, before NCCL's id has been passed on, and afterwards.
TEST(NcclTimeoutTest, ARankThatDoesNotConnectIsNamed) {
  for (const bool passes_id_on : {false, true}) {
    std::atomic<int> ended{0};
    RUN_OR_SKIP(3, [&](GpuRank r) {
      r.options.timeout = std::chrono::seconds(3);
      if (r.control->rank() == 1) {
        Comparison comparison(r.control, r.options.name, AllRanks(3));
        if (passes_id_on) comparison.Run("", [] { return true; });
        while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return;
      }
      try {
        MakeNcclGroup(std::move(r.control), r.options);
      } catch (const CollectiveError& e) {
        ++ended;
        EXPECT_EQ(e.cause(), CollectiveError::Cause::kTimeout);
        EXPECT_THAT(e.culprits(), ElementsAre(1)) << e.what();
        throw;
      }
    });
    EXPECT_EQ(errors[1], "");
    for (const size_t rank : {0, 2}) {
      EXPECT_THAT(errors[rank],
                  AllOf(HasSubstr(StrCat("rank ", rank,
                                         ", group 'world', start of NCCL's "
                                         "communicator: it did not end within 3 s")),
                        HasSubstr(passes_id_on ? " in ncclCommInitRankConfig;" : "within 3 s;"),
                        HasSubstr("rank 1 has not made the group")));
    }
  }
}

// A rank that fails between the agreement on the parts and ncclCommSplit.
TEST(NcclTimeoutTest, ARankThatDoesNotSplitIsNamed) {
  GroupOptions options;
  options.timeout = std::chrono::seconds(3);
  std::atomic<int> ended{0};
  RUN_OR_SKIP(
      3,
      [&](ProcessGroup& g) {
        if (g.rank() == 2) {
          // Its name is taken, here only, and by nothing that answers.
          const uint64_t taken = TopicOf("part/board");
          g.control()->Answer(taken, [](const std::string&) { return ""; });
          EXPECT_THAT(MessageOf([&] { g.Split("part", AllRanks(3)); }),
                      HasSubstr("there is a group 'part' already"));
          while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          g.control()->Unsubscribe(taken);
          return;
        }
        try {
          g.Split("part", AllRanks(3));
        } catch (const CollectiveError& e) {
          ++ended;
          EXPECT_THAT(e.culprits(), ElementsAre(2)) << e.what();
          throw;
        }
      },
      options);
  for (const size_t rank : {0, 1}) {
    EXPECT_THAT(errors[rank],
                AllOf(HasSubstr("group 'part', start of NCCL's communicator: it did not end within "
                                "3 s"),
                      HasSubstr(" in ncclCommSplit; rank 2 has not made the group")));
  }
}

TEST(NcclTimeoutTest, AnIdOfAnotherLengthIsRefused) {
  RUN_OR_SKIP(2, [&](GpuRank r) {
    if (r.control->rank() == 1) {
      MakeNcclGroup(std::move(r.control), r.options);
      return;
    }
    Comparison comparison(r.control, r.options.name, AllRanks(2));
    comparison.Run("too short", [] { return true; });
    while (!r.control->failure()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_THAT(r.control->failure()->culprits, ElementsAre(0));
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 1, group 'world', start of NCCL's communicator: "),
                               HasSubstr("rank 0 has sent no id of a communicator")));
}

}  // namespace
}  // namespace lockstep::dist
