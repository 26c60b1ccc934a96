// Which rank is at fault where messages did not come: pure functions of what the ranks know.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "dist/control/failure_board.h"

namespace lockstep::dist {

struct Verdict {
  std::vector<int> culprits;  // ascending
  std::string reason;
  // Other ranks wait, too, and know better: those that are further behind.
  bool others_know_better = false;
};

// Why `c` has not ended on `reporter`, which waits for messages of `waited_for`, within `timeout`.
// Ranks that have not come to the call are to blame; where all have, those whose messages did not
// reach the ranks that are furthest behind. What `positions` lacks has called nothing.
Verdict ExplainTimeout(const std::map<int, CallPosition>& positions, int size, const Collective& c,
                       int reporter, const std::vector<int>& waited_for,
                       std::chrono::milliseconds timeout);

// Who is gone, from the connections that have ended: those that each rank has lost, by the rank. It
// is at an end of most of them; of two such ends, the one that says nothing.
Verdict ExplainLost(const std::map<int, std::vector<int>>& lost);

}  // namespace lockstep::dist
