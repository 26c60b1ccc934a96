// Which rank is at fault when messages do not arrive: pure functions of what the ranks know.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "dist/control/failure_board.h"

namespace lockstep::dist {

struct Diagnosis {
  std::vector<int> culprits;  // ascending
  std::string reason;
  // Ranks further behind are waiting too, and have better information.
  bool others_know_better = false;
};

// Why `c` did not end within `timeout` on `reporter`, which waits for messages from `waited_for`.
// The ranks at fault are those that do not answer or have not reached the call or, if there are
// none, those whose messages did not reach the ranks that are furthest behind. Nothing is known of
// ranks that are missing in `positions`.
Diagnosis ExplainTimeout(const Answers<CallPosition>& positions, const std::vector<int>& members,
                         const Collective& c, int reporter, const std::vector<int>& waited_for,
                         std::chrono::milliseconds timeout);

// Which ranks are gone, given the connections that each rank has lost, by rank: those that are an
// end of the most lost connections; among these, the ones that reported nothing. But where only
// this rank's report is known, because a rank through which the others' come does not answer, that
// one is at fault: the others may have given up because of it.
Diagnosis ExplainLost(const Answers<std::vector<int>>& reports);

}  // namespace lockstep::dist
