// Time limits of processes that may be stopped.
#pragma once

#include <chrono>

namespace lockstep::dist {

// A steady clock that does not count the time in which this process did not run: a job that is
// stopped as a whole (Ctrl-Z, docker pause) and goes on has lost nothing. Something must ask it
// every few seconds, as the control plane's heartbeat does; nobody asking for longer than kGap
// counts as a stop. Thread-safe.
struct AwakeClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<AwakeClock>;
  static constexpr bool is_steady = true;
  static constexpr std::chrono::seconds kGap{4};

  static time_point now();
};

}  // namespace lockstep::dist
