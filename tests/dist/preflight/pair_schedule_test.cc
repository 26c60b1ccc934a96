#include "dist/preflight/pair_schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <utility>

namespace lockstep::dist {
namespace {

using Machines = std::vector<std::vector<int>>;

// Machines of so many ranks each.
Machines Of(const std::vector<int>& sizes) {
  Machines machines;
  int next = 0;
  for (const int size : sizes) {
    machines.emplace_back(static_cast<size_t>(size));
    std::iota(machines.back().begin(), machines.back().end(), next);
    next += size;
  }
  return machines;
}

// How often each pair meets; checks that ranks meet each other.
std::map<std::pair<int, int>, int> Meetings(const PairSchedule& schedule, int ranks) {
  std::map<std::pair<int, int>, int> meetings;
  for (int round = 0; round < schedule.rounds(); ++round) {
    for (int r = 0; r < ranks; ++r) {
      const int peer = schedule.Peer(round, r);
      if (peer < 0) continue;
      EXPECT_NE(peer, r);
      EXPECT_EQ(schedule.Peer(round, peer), r) << "round " << round;
      if (r < peer) ++meetings[{r, peer}];
    }
  }
  return meetings;
}

TEST(PairSchedule, EveryPairMeetsOnce) {
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{{1},
                                                                     {2},
                                                                     {3},
                                                                     {4},
                                                                     {7},
                                                                     {8},
                                                                     {1, 1},
                                                                     {1, 1, 1},
                                                                     {4, 4},
                                                                     {3, 3, 3},
                                                                     {2, 3, 1},
                                                                     {8, 8},
                                                                     {1, 5},
                                                                     {8, 8, 8, 8, 8, 8, 8, 8}}) {
    const int ranks = std::accumulate(sizes.begin(), sizes.end(), 0);
    const auto meetings = Meetings(PairSchedule(Of(sizes)), ranks);
    EXPECT_EQ(std::ssize(meetings), ranks * (ranks - 1) / 2) << testing::PrintToString(sizes);
    for (const auto& [pair, times] : meetings) EXPECT_EQ(times, 1);
  }
}

TEST(PairSchedule, RoundsAreAsManyAsRanks) {
  for (const int machines : {1, 2, 3, 7, 8}) {
    for (const int ranks : {1, 2, 5, 8}) {
      const PairSchedule schedule(Of(std::vector<int>(static_cast<size_t>(machines), ranks)));
      EXPECT_LE(schedule.rounds(), machines * ranks + machines + ranks);
    }
  }
}

// So that all are measured with the same load of the network.
TEST(PairSchedule, MachinesMeetWithAllTheirRanks) {
  const PairSchedule schedule(Of({4, 4, 4}));
  for (int round = 0; round < schedule.rounds(); ++round) {
    std::map<std::pair<int, int>, int> between;
    for (int r = 0; r < 12; ++r) {
      const int peer = schedule.Peer(round, r);
      if (peer >= 0) ++between[{r / 4, peer / 4}];
    }
    for (const auto& [machines, pairs] : between) EXPECT_EQ(pairs, 4);
  }
}

TEST(PairSchedule, OfManyRanksSomeMeet) {
  const PairSchedule schedule(Of(std::vector<int>(16, 8)));
  const auto meetings = Meetings(schedule, 128);
  EXPECT_EQ(std::ssize(meetings), 16 * (8 * 7 / 2) + 8 * (16 * 15 / 2));
  for (const auto& [pair, times] : meetings) {
    EXPECT_EQ(times, 1);
    EXPECT_TRUE(pair.first / 8 == pair.second / 8 || pair.first % 8 == pair.second % 8);
  }
  EXPECT_LE(schedule.rounds(), 7 + 15);
}

}  // namespace
}  // namespace lockstep::dist
