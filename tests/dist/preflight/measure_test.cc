// The measurements among threads as ranks, over TCP, with and without faults.
#include "dist/preflight/measure.h"

#include <gmock/gmock-more-matchers.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>

#include "dist/groups/agreement.h"
#include "dist/groups/host_group.h"
#include "dist/groups/tcp_transport.h"
#include "dist/preflight/judgement.h"
#include "dist/preflight/preflight.h"
#include "tests/dist/faulty_transport.h"
#include "tests/dist/worlds.h"

namespace lockstep::dist {
namespace {

using namespace std::chrono_literals;
using test::TransportFault;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;

constexpr int kRanks = 4;
const std::vector<std::vector<int>> kOneMachine = {{0, 1, 2, 3}}, kTwoMachines = {{0, 1}, {2, 3}};

struct Found {
  std::vector<PairFacts> pairs;
  std::optional<SumFacts> sum;
  std::vector<ClockFacts> clocks;
};

// What rank 0 finds. With a `fault`, messages of rank 1 have it.
Found Measure(const std::vector<std::vector<int>>& machines,
              const std::optional<TransportFault>& fault = {}) {
  Found found;
  const auto errors = InWorld(kRanks, [&](World& world) {
    const auto control = world.Group({.name = "control"});
    auto transport = MakeTcpTransport(world.control(), "data", AllRanks(kRanks));
    if (fault && world.rank() == 1) transport = MakeFaultyTransport(std::move(transport), *fault);
    const std::shared_ptr<ProcessGroup> data =
        MakeHostGroup(std::move(transport), world.control(), {.name = "data"});
    const auto clocks = MeasureClocks(*control, machines);
    const auto pairs = MeasurePairs(*control, data, machines, 5s);
    const bool answered = std::ranges::all_of(pairs, &PairFacts::answered);
    std::optional<SumFacts> sum;
    if (answered) sum = MeasureSum(*control, data, 1e9, 20s);
    if (world.rank() == 0) found = {pairs, sum, clocks};
    MeetBeforeThrowing(*control);
    // A group that waits in vain can only be given up.
    if (!answered) data->Abort("no answer");
  });
  EXPECT_THAT(errors, Each(""));
  return found;
}

// The facts of ranks of one machine with these pairs.
PreflightFacts FactsOf(const std::vector<PairFacts>& pairs) {
  PreflightFacts facts;
  for (int r = 0; r < kRanks; ++r) facts.ranks.push_back({r, "node0"});
  facts.pairs = pairs;
  facts.patience = 5;
  return facts;
}

TEST(Measure, EveryPairOnceAndTheSum) {
  for (const auto& machines : {kOneMachine, kTwoMachines}) {
    const Found found = Measure(machines);
    ASSERT_EQ(found.pairs.size(), 6u);
    size_t i = 0;
    for (int a = 0; a < kRanks; ++a) {
      for (int b = a + 1; b < kRanks; ++b, ++i) {
        const PairFacts& p = found.pairs[i];
        EXPECT_EQ(std::pair(p.a, p.b), std::pair(a, b));
        EXPECT_TRUE(p.answered && p.right);
        EXPECT_EQ(p.swaps, PairFacts::kSwaps);
        EXPECT_GT(p.latency, 0);
        EXPECT_GT(p.bandwidth, 0);
      }
    }
    ASSERT_TRUE(found.sum);
    EXPECT_TRUE(found.sum->answered && found.sum->right);
    EXPECT_GT(found.sum->seconds, 0);
    EXPECT_GT(found.sum->bytes, 0);
  }
}

// Ranks of one process have one clock.
TEST(Measure, ClocksAreRightWithinTheirError) {
  EXPECT_THAT(Measure(kOneMachine).clocks, testing::IsEmpty());
  const auto clocks = Measure(kTwoMachines).clocks;
  ASSERT_EQ(clocks.size(), 1u);
  EXPECT_EQ(clocks[0].rank, 2);
  EXPECT_GT(clocks[0].error, 0);
  EXPECT_LE(std::abs(clocks[0].ahead), clocks[0].error);
}

// On a busy machine others may be slow, too.
TEST(Measure, ASlowRankIsNamed) {
  const Found found =
      Measure(kOneMachine, TransportFault{.kind = TransportFault::Kind::kDelay, .delay = 30ms});
  EXPECT_THAT(
      Judge(FactsOf(found.pairs)).warnings,
      Contains(testing::ContainsRegex("^ranks? [023, and]*1[023, and]* on node0 (is|are) slow")));
}

TEST(Measure, WrongDataAreNamed) {
  // A bit of one of the large messages to the first peer is flipped: each swap has a message that
  // says what is called, and one with the data, and the 27th to 30th swaps are timed.
  const Found found =
      Measure(kOneMachine, TransportFault{.kind = TransportFault::Kind::kCorrupt, .at_run = 56});
  ASSERT_EQ(found.pairs.size(), 6u);
  EXPECT_THAT(Judge(FactsOf(found.pairs)).stops,
              testing::ElementsAre(AllOf(HasSubstr("received other data"), HasSubstr("1"))));
}

// The others do not wait for long, and all know which pair it is.
TEST(Measure, RanksThatDoNotReachEachOtherAreNamed) {
  const auto begin = std::chrono::steady_clock::now();
  const Found found =
      Measure(kOneMachine, TransportFault{.kind = TransportFault::Kind::kDrop, .at_run = 40});
  const auto stops = Judge(FactsOf(found.pairs)).stops;
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_THAT(stops[0], AllOf(HasSubstr("1"), HasSubstr("made only "),
                              HasSubstr(" of 30 swaps of data within 5 s")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
}

TEST(Measure, ARankThatIsSilentFromTheFirstMessageIsNamed) {
  const Found found =
      Measure(kOneMachine, TransportFault{.kind = TransportFault::Kind::kDrop, .at_run = 1});
  const auto stops = Judge(FactsOf(found.pairs)).stops;
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_THAT(stops[0], AllOf(HasSubstr("1"), HasSubstr("did not answer each other within 5 s")));
}

// ---- The whole preflight ----

const PreflightOptions kSoon = {.join = 2s, .timeout = 3s, .patience = 2s};

// Runs the ranks on threads, `other` on the last one. Returns their errors.
std::vector<std::string> Errors(const std::function<void(const Rendezvous&)>& other,
                                std::string* report) {
  const int port = FreePort();
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  std::ostringstream text;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      const Rendezvous rendezvous = RendezvousOf(r, kRanks, port);
      try {
        if (r == kRanks - 1) return other(rendezvous);
        RunPreflight(rendezvous, kCpu, text, kSoon);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  *report = text.str();
  return errors;
}

TEST(Preflight, AMissingRankIsNamed) {
  std::string report;
  const auto errors = Errors([](const Rendezvous&) {}, &report);
  for (int r = 0; r < kRanks - 1; ++r)
    EXPECT_THAT(errors[static_cast<size_t>(r)], HasSubstr("rank 3"));
}

// It has met the others, and then does nothing.
TEST(Preflight, ARankThatDoesNotTakePartIsNamed) {
  std::string report;
  const auto errors = Errors(
      [](const Rendezvous& rendezvous) {
        World world(rendezvous, {.timeout = 60s});
        const auto control = world.Group({.name = "preflight", .timeout = 60s});
        while (!world.control()->failure()) std::this_thread::sleep_for(5ms);
      },
      &report);
  for (int r = 0; r < kRanks - 1; ++r)
    EXPECT_THAT(errors[static_cast<size_t>(r)], HasSubstr("rank 3"));
}

// Nothing is measured, since libraries that differ may hang; all ranks say why.
TEST(Preflight, ABuildThatDiffersIsReported) {
  std::string report;
  const auto errors = Errors(
      [](const Rendezvous& rendezvous) {
        World world(rendezvous, {.timeout = 60s});
        const auto control = world.Group({.name = "preflight", .timeout = 60s});
        RankFacts facts{rendezvous.local_rank, "node7"};
        facts.versions["build"] = "another";
        GatherTexts(*control, ToText(facts));  // as RunPreflight does
        MeetBeforeThrowing(*control);
      },
      &report);
  EXPECT_THAT(report, AllOf(HasSubstr("4 ranks on 2 machines"), HasSubstr("node7")));
  for (int r = 0; r < kRanks - 1; ++r) {
    EXPECT_THAT(errors[static_cast<size_t>(r)],
                AllOf(HasSubstr("build is"), HasSubstr("another on rank 3 on node7")));
  }
}

}  // namespace
}  // namespace lockstep::dist
