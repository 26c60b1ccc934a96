// What is made of a preflight's facts, which are made up here.
#include "dist/preflight/report.h"

#include <gmock/gmock-more-matchers.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "core/error.h"
#include "dist/preflight/pair_schedule.h"

namespace lockstep::dist {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Ranks of `machines` machines, node0, node1, ...: a pair has 10 GB/s and 5 us within a machine, 1
// GB/s and 20 us between two.
PreflightFacts Facts(int machines, int ranks) {
  PreflightFacts facts;
  facts.patience = 10;
  for (int m = 0; m < machines; ++m) {
    for (int r = 0; r < ranks; ++r) {
      RankFacts rank{r,      StrCat("node", m),
                     "cpu",  StrCat("10.0.0.", m + 1),
                     "eth0", "it has the route to rank 0 at node0"};
      rank.versions = {{"build", "b1"}, {"NCCL", "2.27.3"}, {"kernel", "6.1.0"}};
      facts.ranks.push_back(rank);
    }
  }
  const PairSchedule schedule(MachinesOf(facts.ranks));
  for (int round = 0; round < schedule.rounds(); ++round) {
    for (int a = 0; a < machines * ranks; ++a) {
      const int b = schedule.Peer(round, a);
      const bool within = a / ranks == b / ranks;
      if (a < b)
        facts.pairs.push_back({a, b, true, true, within ? 5e-6 : 20e-6, within ? 1e10 : 1e9});
    }
  }
  facts.sum = SumFacts{true, true, 1 << 20, 1e-3};
  return facts;
}

PairFacts& Pair(PreflightFacts& facts, int a, int b) {
  return *std::ranges::find_if(facts.pairs, [&](auto& p) { return p.a == a && p.b == b; });
}

std::vector<std::string> Stops(const PreflightFacts& facts) { return Judge(facts).stops; }
std::vector<std::string> Warnings(const PreflightFacts& facts) { return Judge(facts).warnings; }

// The words of the first line that begins with `word`.
std::vector<std::string> Line(const std::string& text, const std::string& word) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::vector<std::string> words;
    for (std::string w; in >> w;) words.push_back(w);
    if (!words.empty() && words[0] == word) return words;
  }
  return {};
}

TEST(Judgement, NothingIsWrongWithEqualRanks) {
  for (const auto& [machines, ranks] : {std::pair(1, 1), {1, 4}, {2, 2}, {4, 8}, {16, 8}}) {
    const Judgement judgement = Judge(Facts(machines, ranks));
    EXPECT_THAT(judgement.stops, IsEmpty());
    EXPECT_THAT(judgement.warnings, IsEmpty());
  }
}

TEST(Judgement, LibrariesAndBuildsThatDifferStopARun) {
  for (const char* const name : {"NCCL", "build"}) {
    PreflightFacts facts = Facts(2, 2);
    facts.ranks[3].versions[name] = "other";
    EXPECT_THAT(Stops(facts), ElementsAre(AllOf(HasSubstr(name), HasSubstr("ranks 0, 1 and 2"),
                                                HasSubstr("other on rank 3 on node1"))));
  }
  PreflightFacts facts = Facts(2, 2);
  facts.ranks[2].versions.erase("NCCL");
  EXPECT_THAT(Stops(facts), ElementsAre(HasSubstr("missing on rank 2 on node1")));
}

TEST(Judgement, OtherDifferencesAreNamed) {
  PreflightFacts facts = Facts(2, 2);
  facts.ranks[1].versions["kernel"] = "5.15";
  facts.ranks[2].settings["NCCL_IB_DISABLE"] = "1";
  EXPECT_THAT(Stops(facts), IsEmpty());
  EXPECT_THAT(Warnings(facts),
              ElementsAre(AllOf(HasSubstr("kernel"), HasSubstr("5.15 on rank 1 on node0")),
                          AllOf(HasSubstr("NCCL_IB_DISABLE"), HasSubstr("1 on rank 2 on node1"))));
}

TEST(Judgement, ASlowRankIsNamedOnceWithItsMachine) {
  PreflightFacts facts = Facts(1, 4);
  for (PairFacts& p : facts.pairs) {
    if (p.a == 1 || p.b == 1) p.bandwidth /= 3;
  }
  EXPECT_THAT(Warnings(facts), ElementsAre(AllOf(HasSubstr("rank 1 on node0 is slow"),
                                                 HasSubstr("3.33 GB/s"), HasSubstr("10 GB/s"))));
  EXPECT_THAT(Stops(facts), IsEmpty());
  for (PairFacts& p : facts.pairs) {
    p.bandwidth = 1e10;
    if (p.b == 3) p.latency = 1e-3;
  }
  EXPECT_THAT(Warnings(facts), ElementsAre(AllOf(HasSubstr("rank 3 on node0 is slow"),
                                                 HasSubstr("1000 us"), HasSubstr("5 us"))));
}

TEST(Judgement, ASlowMachineIsNamedByItsRanks) {
  PreflightFacts facts = Facts(4, 2);
  for (PairFacts& p : facts.pairs) {
    if ((p.a / 2 == 2) != (p.b / 2 == 2)) p.bandwidth /= 5;
  }
  EXPECT_THAT(Warnings(facts),
              ElementsAre(AllOf(HasSubstr("ranks 4 and 5 on node2 are slow between machines"),
                                HasSubstr("0.2 GB/s"))));
}

TEST(Judgement, ASlowLinkIsNamedByBothEnds) {
  PreflightFacts facts = Facts(2, 4);
  Pair(facts, 2, 5).bandwidth /= 3;
  EXPECT_THAT(Warnings(facts), ElementsAre(AllOf(HasSubstr("rank 2 on node0 and rank 5 on node1"),
                                                 HasSubstr("0.333 GB/s"),
                                                 HasSubstr("between machines has 1 GB/s"))));
}

TEST(Judgement, ManySlowLinksAreCounted) {
  PreflightFacts facts = Facts(1, 16);
  int slow = 0;
  for (PairFacts& p : facts.pairs) {
    if (p.b == p.a + 1) p.bandwidth /= 3, ++slow;
  }
  const auto warnings = Warnings(facts);
  EXPECT_LT(warnings.size(), 15u);
  EXPECT_THAT(warnings.back(), HasSubstr(StrCat(slow - (warnings.size() - 1), " more links")));
}

TEST(Judgement, GpusOfAMachineThatDoNotAnswerAreAMatterOfAcsAndIommu) {
  PreflightFacts facts = Facts(2, 2);
  for (RankFacts& r : facts.ranks) r.gpu = {"H200", StrCat("bus ", r.local_rank)};
  Pair(facts, 2, 3).answered = false;
  EXPECT_THAT(
      Stops(facts),
      ElementsAre(AllOf(HasSubstr("ranks 2 and 3 on node1 did not answer each other within "
                                  "10 s"),
                        HasSubstr("NCCL_P2P_DISABLE=1"), HasSubstr("ACS"), HasSubstr("IOMMU"))));
  // It answered, and then became silent, or was slow.
  Pair(facts, 2, 3).swaps = 19;
  EXPECT_THAT(Stops(facts),
              ElementsAre(AllOf(HasSubstr("ranks 2 and 3 on node1"),
                                HasSubstr("19 of 30 swaps of data within 10 s"),
                                Not(HasSubstr("MTU")), Not(HasSubstr("did not answer")))));
  Pair(facts, 2, 3).answered = true;
  Pair(facts, 1, 3).answered = false;
  EXPECT_THAT(Stops(facts),
              ElementsAre(AllOf(HasSubstr("rank 1 on node0 and rank 3 on node1"),
                                HasSubstr("NCCL_SOCKET_IFNAME=eth0"), Not(HasSubstr("ACS")))));
}

TEST(Judgement, MachinesThatAnswerSlowlyAreAMatterOfTheMtu) {
  PreflightFacts facts = Facts(2, 2);
  Pair(facts, 1, 3).answered = false;
  EXPECT_THAT(Stops(facts), ElementsAre(AllOf(HasSubstr("did not answer each other within 10 s"),
                                              Not(HasSubstr("MTU")))));
  Pair(facts, 1, 3).swaps = 19;
  EXPECT_THAT(Stops(facts),
              ElementsAre(AllOf(HasSubstr("rank 1 on node0 and rank 3 on node1 made only 19 of 30"),
                                HasSubstr("on node0 `ping -c 3 -M do -s "
                                          "$(($(cat /sys/class/net/eth0/mtu) - 28)) 10.0.0.2`"),
                                HasSubstr("firewalls"))));
}

TEST(Judgement, WrongDataStopARun) {
  PreflightFacts facts = Facts(1, 4);
  Pair(facts, 0, 3).right = false;
  EXPECT_THAT(Stops(facts), ElementsAre(HasSubstr("ranks 0 and 3 on node0 received other data")));
  facts = Facts(1, 4);
  facts.sum->right = false;
  EXPECT_THAT(Stops(facts), ElementsAre(HasSubstr("wrong sums")));
  facts.sum->answered = false;
  EXPECT_THAT(Stops(facts), ElementsAre(HasSubstr("did not end within 10 s")));
}

TEST(Judgement, NetworksAndClocksAreLookedAt) {
  PreflightFacts facts = Facts(2, 1);
  facts.ranks[1].mbits = {{"eth0", 1000}, {"ib0", 200000}};
  facts.clocks = {{1, -3.5, 0.001}};
  facts.gpu_clocks = {{0, {1980, 1980, {}}}, {1, {345, 1980, {"heat"}}}};
  EXPECT_THAT(Warnings(facts),
              ElementsAre(AllOf(HasSubstr("node1 uses eth0"), HasSubstr("LOCKSTEP_INTERFACE=ib0")),
                          AllOf(HasSubstr("clock of node1 is 3.5 s behind that of node0")),
                          AllOf(HasSubstr("rank 1 on node1"), HasSubstr("345 of 1980 MHz"),
                                HasSubstr("heat"))));
  facts.clocks = {{1, 3.5, 3}};  // nothing is known
  facts.ranks[1].mbits["ib0"] = 1000;
  facts.gpu_clocks.clear();
  EXPECT_THAT(Warnings(facts), IsEmpty());
}

TEST(Judgement, GpusWithoutP2PAreCounted) {
  PreflightFacts facts = Facts(1, 2);
  facts.ranks[0].gpu = {"RTX 4090", "a", {{"b", false}}};
  facts.ranks[1].gpu = {"RTX 4090", "b", {{"a", false}}};
  EXPECT_THAT(Warnings(facts), ElementsAre(AllOf(HasSubstr("1 pair"), HasSubstr("P2P"))));
  facts.ranks[0].gpu.peers["b"] = facts.ranks[1].gpu.peers["a"] = true;
  EXPECT_THAT(Warnings(facts), IsEmpty());
}

// Each pair has a cell below the diagonal, and one above it.
TEST(Report, HasACellForEachPair) {
  PreflightFacts facts = Facts(2, 2);
  Pair(facts, 1, 2).answered = false;
  std::erase_if(facts.pairs, [](auto& p) { return p.a == 2 && p.b == 3; });  // was not measured
  const std::string text = MakeReport(facts, Judge(facts));
  const auto find = [&](int a, int b) {
    return std::ranges::any_of(facts.pairs, [&](auto& p) { return p.a == a && p.b == b; });
  };
  for (int i = 0; i < 4; ++i) {
    const auto row = Line(text, StrCat(i));
    ASSERT_EQ(row.size(), 5u) << text;
    for (int j = 0; j < 4; ++j) {
      const auto [a, b] = std::minmax(i, j);
      const bool within = a / 2 == b / 2;
      std::string expected = i > j ? (within ? "10" : "1") : (within ? "5" : "20");
      if (i == j)
        expected = ".";
      else if (!find(a, b))
        expected = "-";
      else if (a == 1 && b == 2)
        expected = "none";
      EXPECT_EQ(row[static_cast<size_t>(j) + 1], expected) << text;
    }
  }
}

TEST(Report, OfManyRanksHasACellForEachPairOfMachines) {
  const PreflightFacts facts = Facts(16, 8);
  const std::string text = MakeReport(facts, Judge(facts));
  const auto row = Line(text.substr(text.find("pairs of machines")), "node1");
  ASSERT_EQ(row.size(), 17u) << text;
  EXPECT_EQ(row[1], "1");   // GB/s to node0
  EXPECT_EQ(row[2], "10");  // within
  EXPECT_EQ(row[3], "20");  // us to node2
}

TEST(Report, SaysWhatWasFound) {
  PreflightFacts facts = Facts(2, 2);
  facts.ranks[3].versions["NCCL"] = "2.21.5";
  facts.ranks[0].mbits = {{"eth0", 25000}};
  facts.clocks = {{2, 0.002, 0.0001}};
  facts.sum->seconds = 1e-3;
  const Judgement judgement = Judge(facts);
  EXPECT_THAT(MakeReport(facts, judgement),
              AllOf(HasSubstr("4 ranks on 2 machines"), HasSubstr("0-1"), HasSubstr("10.0.0.2"),
                    HasSubstr("eth0 (25000 Mbit/s)"), HasSubstr(facts.ranks[0].why),
                    HasSubstr("2.21.5"), HasSubstr("node1: 2 ms ahead"),
                    // 2 * 3/4 of 1 MiB
                    HasSubstr("1 ms, 1.57 GB/s"), HasSubstr(judgement.stops[0])));
}

TEST(Report, SaysWhereTheNetworkOfGpusIsChosen) {
  PreflightFacts facts = Facts(2, 1);
  const auto text = [&] { return MakeReport(facts, {}); };
  EXPECT_THAT(text(), Not(HasSubstr("NCCL_SOCKET_IFNAME"))) << "on CPUs";
  for (RankFacts& r : facts.ranks) r.gpu = {"H200", "bus"};
  EXPECT_THAT(text(), HasSubstr("NCCL_SOCKET_IFNAME=eth0 would name it"));
  for (RankFacts& r : facts.ranks) r.settings["NCCL_SOCKET_IFNAME"] = "ib0";
  EXPECT_THAT(text(), HasSubstr("NCCL uses NCCL_SOCKET_IFNAME=ib0"));
}

// As soon as ranks have met, and whatever happens then.
TEST(Report, IsMadeOfWhatIsKnown) {
  PreflightFacts facts = Facts(1, 2);
  facts.pairs.clear();
  facts.sum.reset();
  facts.failure = "rank 1 is stalled";
  const Judgement judgement = Judge(facts);
  EXPECT_THAT(judgement.stops, ElementsAre("rank 1 is stalled"));
  EXPECT_THAT(MakeReport(facts, judgement), HasSubstr("  - rank 1 is stalled\n"));
}

TEST(Facts, TravelAsText) {
  PreflightFacts facts = Facts(1, 1);
  RankFacts& sent = facts.ranks[0];
  sent.gpu = {"H200", "0000:1B:00.0", {{"0000:2B:00.0", true}}};
  sent.settings["NCCL_DEBUG"] = "INFO";
  const RankFacts got = ParseRankFacts(ToText(sent));
  EXPECT_EQ(got.host, sent.host);
  EXPECT_EQ(got.versions, sent.versions);
  EXPECT_EQ(got.settings, sent.settings);
  EXPECT_EQ(got.gpu.peers, sent.gpu.peers);
  EXPECT_EQ(ParseGpuClocks(ToText(std::nullopt)), std::nullopt);
  EXPECT_EQ(ParseGpuClocks(ToText(GpuClocks{1, 2, {"heat"}}))->slowed_by,
            std::vector<std::string>{"heat"});
  EXPECT_THROW(ParseRankFacts("{"), InputError);
  EXPECT_THROW(ParseRankFacts("{}"), InputError);
}

TEST(Facts, RanksOfTwoLaunchersOnAMachineAreRanksOfTwoMachines) {
  std::vector<RankFacts> ranks;
  for (const int local : {0, 1, 0, 1}) ranks.push_back({local, "node0"});
  ranks.push_back({0, "node1"});
  EXPECT_THAT(MachinesOf(ranks), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  const auto names = MachineNames(ranks, MachinesOf(ranks));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 3u);
  EXPECT_EQ(names[2], "node1");
}

}  // namespace
}  // namespace lockstep::dist
