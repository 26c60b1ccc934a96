#include "dist/preflight/pair_schedule.h"

#include <algorithm>
#include <utility>

#include "dist/preflight/facts.h"

namespace lockstep::dist {
namespace {

int RoundsOf(int players) { return players < 2 ? 0 : players + players % 2 - 1; }

// The circle method: whom a player meets in a tournament of so many rounds (odd): all players but
// the last sit on a circle, and i and j meet if i + j = round. Who would meet itself meets the last
// one. There may be no such player.
int Opponent(int rounds, int round, int player) {
  if (player == rounds) return round * ((rounds + 1) / 2) % rounds;
  const int opponent = (round - player + rounds) % rounds;
  return opponent == player ? rounds : opponent;
}

}  // namespace

PairSchedule::PairSchedule(std::vector<std::vector<int>> machines)
    : machines_(std::move(machines)), machine_of_(MachineOfRanks(machines_)) {
  place_of_.resize(machine_of_.size());
  for (const auto& ranks : machines_) {
    largest_ = std::max(largest_, static_cast<int>(ranks.size()));
    for (size_t i = 0; i < ranks.size(); ++i) {
      place_of_[static_cast<size_t>(ranks[i])] = static_cast<int>(i);
    }
  }
  within_ = RoundsOf(largest_);
  between_ = RoundsOf(static_cast<int>(machines_.size()));
  if (std::ssize(machine_of_) <= kMostOfAllPairs) shifts_ = largest_;
}

int PairSchedule::Peer(int round, int rank) const {
  const int machine = machine_of_[static_cast<size_t>(rank)];
  int place = place_of_[static_cast<size_t>(rank)], other = machine;
  if (round < within_) {
    place = Opponent(within_, round, place);
  } else {
    other = Opponent(between_, (round - within_) / shifts_, machine);
    const int shift = (round - within_) % shifts_;
    place = (place + (machine < other ? shift : largest_ - shift)) % largest_;
  }
  if (other >= std::ssize(machines_)) return -1;
  const auto& ranks = machines_[static_cast<size_t>(other)];
  return place < std::ssize(ranks) ? ranks[static_cast<size_t>(place)] : -1;
}

}  // namespace lockstep::dist
