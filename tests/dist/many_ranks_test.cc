// Host groups of so many ranks that none talks to all others: what they compute, and what they say
// of faults. See process_group_test and fault_matrix_test for fewer.
#include <gmock/gmock-matchers.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "dist/control/file_descriptor.h"
#include "dist/groups/agreement.h"
#include "dist/groups/host_group.h"
#include "tests/dist/faulty_transport.h"
#include "tests/dist/ranks.h"

namespace lockstep::dist::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using Cause = CollectiveError::Cause;

// Two rounds: 7 messages, and 2.
constexpr int kRanks = 20;

Tensor Filled(int64_t n, double value) { return Tensor::Full({n}, value, DType::kF32); }

TEST(ManyRanks, EveryCollective) {
  for (const bool check : {false, true}) {
    RunRanks(kRanks,
             [](ProcessGroup& g) {
               const int rank = g.rank(), last = kRanks - 1;
               const float sum = kRanks * (kRanks + 1) / 2.0f;
               for (const int64_t n : {0, 1, 5, 6000}) {
                 const Tensor all = Filled(n, rank + 1), root = Filled(n, rank);
                 const Tensor gathered = Filled(n * kRanks, -1), swapped = Filled(n * kRanks, -1);
                 const Tensor parts = Filled(n * kRanks, rank + 1), part = Filled(n, -1);
                 const Tensor own = gathered.Slice(0, rank * n, (rank + 1) * n);
                 own.Fill(rank);
                 g.AllReduce(all);
                 g.Broadcast(root, last);
                 g.AllGather(own, gathered);
                 g.ReduceScatter(parts, part);
                 g.AllToAll(parts, swapped)->Wait();
                 EXPECT_THAT(all.ToVector<float>(), Each(sum));
                 EXPECT_THAT(root.ToVector<float>(), Each(static_cast<float>(last)));
                 EXPECT_THAT(part.ToVector<float>(), Each(sum));
                 for (int64_t i = 0; i < n * kRanks; ++i) {
                   ASSERT_EQ(gathered.data<float>()[i], static_cast<float>(i / n));
                   ASSERT_EQ(swapped.data<float>()[i], static_cast<float>(i / n + 1));
                 }
               }
               // Of uneven parts: r sends p (r + p) % 3 elements.
               std::vector<int64_t> counts;
               for (int p = 0; p < kRanks; ++p) counts.push_back((rank + p) % 3);
               const int64_t n = std::accumulate(counts.begin(), counts.end(), int64_t{0});
               const Tensor uneven = Filled(n, -1);
               g.AllToAll(Filled(n, rank), uneven, counts, counts)->Wait();
               const float* next = uneven.data<float>();
               for (int p = 0; p < kRanks; ++p) {
                 for (int64_t i = 0; i < counts[static_cast<size_t>(p)]; ++i) EXPECT_EQ(*next++, p);
               }
               // Between ranks that are far from each other.
               const Tensor there = Filled(3, rank), here = Filled(3, -1);
               const int other = (rank + kRanks / 2) % kRanks;
               g.Exchange({{Transfer::Direction::kSend, there, other},
                           {Transfer::Direction::kReceive, here, other}})
                   ->Wait();
               EXPECT_THAT(here.ToVector<float>(), Each(static_cast<float>(other)));
               g.CheckInStep();
             },
             {.check_every_call = check});
  }
}

TEST(ManyRanks, AgreeAndAreSplit) {
  RunRanks(kRanks, [](ProcessGroup& g) {
    const std::vector<int64_t> mine = {g.rank(), 10 * g.rank()};
    const auto rows = GatherValues(g, std::span<const int64_t>(mine));
    const auto texts = GatherTexts(g, StrCat("rank ", g.rank()));
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_THAT(rows[static_cast<size_t>(r)], ElementsAre(r, 10 * r));
      EXPECT_EQ(texts[static_cast<size_t>(r)], StrCat("rank ", r));
    }
    std::vector<int> half;
    for (int r = g.rank() % 2; r < kRanks; r += 2) half.push_back(r);
    const auto part = g.Split(g.rank() % 2 == 0 ? "even" : "odd", half);
    EXPECT_EQ(part->members(), half);
    const Tensor x = Filled(1, 1);
    part->AllReduce(x)->Wait();
    EXPECT_EQ(x.data<float>()[0], kRanks / 2);
  });
}

TEST(ManyRanks, BarriersHoldEveryoneBack) {
  std::atomic<int> arrived{0};
  RunRanks(kRanks, [&](ProcessGroup& g) {
    for (int round = 1; round <= 10; ++round) {
      if (g.rank() == round) std::this_thread::sleep_for(milliseconds(10));
      ++arrived;
      g.Barrier()->Wait();
      EXPECT_GE(arrived, round * kRanks);
    }
  });
}

struct Outcome {
  std::vector<std::string> errors = std::vector<std::string>(kRanks);
  std::vector<std::optional<Cause>> causes = std::vector<std::optional<Cause>>(kRanks);
  std::vector<std::vector<int>> culprits = std::vector<std::vector<int>>(kRanks);
  std::atomic<int> failed{0};
};

constexpr int kCulprit = 11;

using Body = std::function<void(ProcessGroup&, const std::atomic<int>& failed)>;

// Two exchanges in a barrier; then the culprit does `fault`, or its transport does, and the others
// gather.
void Play(const Body& fault, const std::optional<TransportFault>& transport_fault,
          Outcome* outcome) {
  auto ends = MakeEnds(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      End end = std::move(ends[static_cast<size_t>(r)]);
      if (r == kCulprit && transport_fault) {
        end.transport = MakeFaultyTransport(std::move(end.transport), *transport_fault);
      }
      const auto i = static_cast<size_t>(r);
      try {
        const auto g =
            MakeHostGroup(std::move(end.transport), end.control, {.timeout = seconds(4)});
        g->Barrier()->Wait();
        if (r == kCulprit && fault) return fault(*g, outcome->failed);
        const Tensor x = Filled(100, 1), y = Filled(100 * kRanks, 0);
        g->AllGather(x, y)->Wait();
        g->Barrier()->Wait();
      } catch (const CollectiveError& e) {
        outcome->errors[i] = e.what();
        outcome->causes[i] = e.cause();
        outcome->culprits[i] = e.culprits();
        ++outcome->failed;
      } catch (const std::exception& e) {
        outcome->errors[i] = e.what();
        ++outcome->failed;
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

struct FaultCase {
  const char* name;
  Body rank;
  std::optional<TransportFault> transport;
  Cause cause;
  const char* words;
};

// Exchanges 3 and 4 are those of the check, 5 and 6 those of the data.
const FaultCase kFaults[] = {
    {"calls something else",
     [](ProcessGroup& g, const std::atomic<int>&) { g.AllReduce(Filled(2, 1))->Wait(); },
     {},
     Cause::kMismatch,
     "rank 11 all_reduce #2 (f32[2], sum); is there a collective that only rank 11 calls or skips"},
    {"another size",
     [](ProcessGroup& g, const std::atomic<int>&) {
       g.AllGather(Filled(2, 1), Filled(2 * kRanks, 1))->Wait();
     },
     {},
     Cause::kMismatch,
     "rank 11 all_gather #2 (f32[2])"},
    {"another purpose",
     [](ProcessGroup& g, const std::atomic<int>&) {
       g.AllGather(Filled(100, 1), Filled(100 * kRanks, 0), "block 3")->Wait();
     },
     {},
     Cause::kMismatch,
     "rank 11 makes this call for another purpose than the other ranks"},
    {"ends",
     [](ProcessGroup&, const std::atomic<int>&) {},
     {},
     Cause::kMismatch,
     "rank 11 has left the group; rank 11 ended while others continue: with less data?"},
    {"throws",
     [](ProcessGroup&, const std::atomic<int>&) { throw InputError("shard 7 is truncated"); },
     {},
     Cause::kAborted,
     "rank 11 gave up: its group was destroyed by an exception"},
    {"late",
     [](ProcessGroup& g, const std::atomic<int>& failed) {
       while (failed < kRanks - 1) std::this_thread::sleep_for(milliseconds(5));
       g.Barrier()->Wait();
     },
     {},
     Cause::kTimeout,
     "rank 11 did not take part within 4 s; rank 11 last called barrier #1"},
    {"drops in the check",
     {},
     TransportFault{.kind = TransportFault::Kind::kDrop, .at_run = 3},
     Cause::kTimeout,
     "nothing that rank 11 sent reached ranks 12, 13, 14, 15, 16, 17 and 18"},
    {"drops in the check's second round",
     {},
     TransportFault{.kind = TransportFault::Kind::kDrop, .at_run = 4},
     Cause::kTimeout,
     "nothing that rank 11 sent reached ranks 7 and 19"},
    {"drops data",
     {},
     TransportFault{.kind = TransportFault::Kind::kDrop, .at_run = 5},
     Cause::kTimeout,
     "nothing that rank 11 sent reached ranks 4, 5, 6, 7, 8, 9 and 10"},
    {"drops data of the second round",
     {},
     TransportFault{.kind = TransportFault::Kind::kDrop, .at_run = 6},
     Cause::kTimeout,
     "nothing that rank 11 sent reached ranks 3 and 15"},
    {"disconnects in the check",
     {},
     TransportFault{.kind = TransportFault::Kind::kDisconnect, .at_run = 3},
     Cause::kLostRank,
     "rank 11 is gone: connections to ranks "},
    {"disconnects in the data",
     {},
     TransportFault{.kind = TransportFault::Kind::kDisconnect, .at_run = 6},
     Cause::kLostRank,
     "rank 11 is gone: connections to ranks "},
};

TEST(ManyRanks, FaultsAreNamedOnEveryRank) {
  RaiseDescriptorLimit();
  constexpr size_t kCases = std::size(kFaults);
  std::vector<Outcome> outcomes(kCases);
  std::vector<std::thread> threads;  // most of the time they wait for a timeout
  for (size_t i = 0; i < kCases; ++i) {
    threads.emplace_back([&, i] { Play(kFaults[i].rank, kFaults[i].transport, &outcomes[i]); });
  }
  for (std::thread& t : threads) t.join();
  for (size_t i = 0; i < kCases; ++i) {
    const FaultCase& fault = kFaults[i];
    SCOPED_TRACE(fault.name);
    for (int r = 0; r < kRanks; ++r) {
      const auto at = static_cast<size_t>(r);
      const bool by_itself = r == kCulprit && (std::string(fault.name) == "ends" ||
                                               std::string(fault.name) == "throws");
      if (by_itself) {
        EXPECT_EQ(outcomes[i].causes[at], std::nullopt) << outcomes[i].errors[at];
        continue;
      }
      EXPECT_EQ(outcomes[i].causes[at], fault.cause) << outcomes[i].errors[at];
      EXPECT_THAT(outcomes[i].culprits[at], ElementsAre(kCulprit)) << outcomes[i].errors[at];
      EXPECT_THAT(outcomes[i].errors[at], AllOf(HasSubstr(StrCat("rank ", r, ", group 'world', ")),
                                                HasSubstr(fault.words)));
    }
  }
}

// All calls are different: those of some ranks are listed.
TEST(ManyRanks, ThatAllCallSomethingElseAreToldSo) {
  const auto errors = ErrorsOf(kRanks, [](ProcessGroup& g) {
    g.Barrier()->Wait();
    g.AllReduce(Filled(g.rank() + 1, 1))->Wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("ranks do not call the same operation: "),
                                 HasSubstr("rank 0 all_reduce #2 (f32[1], sum)"),
                                 HasSubstr("do all ranks have the same configuration"))));
}

// Uneven parts are compared by each pair.
TEST(ManyRanks, PartsThatDoNotMatchAreAnError) {
  const auto errors = ErrorsOf(kRanks, [](ProcessGroup& g) {
    const std::vector<int64_t> give(kRanks, 2);
    std::vector<int64_t> take(kRanks, 2);
    if (g.rank() == 14) take[3] = 3;  // of a rank that it does not compare calls with
    const int64_t n = 2 * kRanks;
    g.AllToAll(Filled(n, 1), Filled(g.rank() == 14 ? n + 1 : n, 1), give, take)->Wait();
    g.Barrier()->Wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("all_to_all: rank 3 sends rank 14 2 elements"),
                                 HasSubstr("expects 3"))));
}

// Rank 0 exchanges with a rank that waits for it in a collective, and that does not talk to it.
TEST(ManyRanks, AnExchangeAgainstACollectiveIsFound) {
  const auto errors = ErrorsOf(kRanks,
                               [](ProcessGroup& g) {
                                 g.Barrier()->Wait();
                                 if (g.rank() == 0) {
                                   g.Send(Filled(3, 1), 10)->Wait();
                                 } else {
                                   g.AllReduce(Filled(3, 1))->Wait();
                                 }
                               },
                               {.timeout = seconds(3)});
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("exchange #1"), HasSubstr("all_reduce #2"))));
}

}  // namespace
}  // namespace lockstep::dist::test
