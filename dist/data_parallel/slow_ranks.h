// Which rank keeps the others waiting, and why.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::dist {

// What a rank did in some steps, in microseconds.
struct RankTimes {
  int64_t arrival = 0;               // CommunicationTimes::arrival_ms
  int64_t data = 0, checkpoint = 0;  // of that: waiting for data, writing checkpoints
  int64_t receiving = 0;             // CommunicationTimes::receiving_ms

  RankTimes& operator+=(const RankTimes& more);
};

// A rank that the others wait for.
struct LateRank {
  int rank = 0;
  double ms = 0;     // per step: behind the middle one of the other ranks
  double share = 0;  // of a step
  // What takes it longer than the others: "data", "checkpoint", "computing"; or "sending", if the
  // others receive from it for longer than it does from them.
  std::string cause;
};

// A pure function of what it is given. Memory and time do not grow with the number of steps.
//
// A rank is late by as much as it needs longer to arrive at the sums of a step than the middle one
// of the ranks that do the same work, plus how much less it then waits for their messages than the
// middle one does: who sends slowly receives fast. It is named once that has been more than a tenth
// of a step in the mean of two windows running: for a hundred steps. A window has at least 50 steps
// and lasts two seconds, so neither one long stall names anybody, nor short steps on busy machines.
class SlowRanks {
 public:
  static constexpr int64_t kWindow = 50;     // steps
  static constexpr double kWindowMs = 2000;  // at least
  static constexpr double kLate = 0.1;       // of a step
  // Steps between two times at which the same rank is named.
  static constexpr int64_t kQuiet = 1000;

  // work[r]: ranks with the same number do the same work, and are compared. Those of a pipeline's
  // other stages are not, nor those that compute more micro-batches.
  explicit SlowRanks(std::vector<int64_t> work);

  // At the end of a window.
  struct Verdict {
    LateRank latest;              // even if it is hardly late
    std::vector<LateRank> named;  // those that are late, all of them, while they are
    std::vector<LateRank> begin;  // of these, the ones to tell of now
    std::vector<int> end;         // ranks that were told of, and are late no longer
  };
  // Adds some steps that took `ms` in all, of which rank r spent times[r].
  std::optional<Verdict> Add(int64_t steps, double ms, std::span<const RankTimes> times);

 private:
  struct State {
    RankTimes sums;          // of the window
    int late = 0, well = 0;  // windows running, counted to two
    bool named = false, told = false;
    int64_t quiet_until = 0;  // step
  };
  std::vector<LateRank> Compare() const;
  template <class F>
  std::vector<double> Excesses(const F& value) const;

  std::vector<State> ranks_;
  std::vector<std::vector<size_t>> alike_;  // the ranks of each work
  int64_t all_steps_ = 0, steps_ = 0;       // in all; in the window
  double ms_ = 0;                           // of the window
};

}  // namespace lockstep::dist
