// Which pairs of ranks are measured at the same time.
#pragma once

#include <vector>

namespace lockstep::dist {

// Tournaments, in whose rounds each rank meets at most one other: first among the ranks of each
// machine, then between machines, where the ranks of two machines all meet at once, so that every
// pair shares its machines' network with equally many others. About as many rounds as there are
// ranks.
class PairSchedule {
 public:
  // The most ranks of which every pair is measured. Beyond, the pairs between two machines are
  // those with equal places on their machine.
  static constexpr int kMostOfAllPairs = 64;

  // `machines`: the ranks of each.
  explicit PairSchedule(std::vector<std::vector<int>> machines);

  int rounds() const { return within_ + between_ * shifts_; }
  // Whom the rank meets; -1: nobody.
  int Peer(int round, int rank) const;

 private:
  const std::vector<std::vector<int>> machines_;
  std::vector<int> machine_of_, place_of_;  // by rank
  int largest_ = 0;                         // ranks of a machine
  int within_ = 0, between_ = 0;            // rounds of the tournaments
  int shifts_ = 1;                          // rounds in which two machines meet
};

}  // namespace lockstep::dist
