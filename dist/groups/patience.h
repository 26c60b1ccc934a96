// How long a rank waits for the others.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "dist/control/awake_clock.h"
#include "dist/control/control_plane.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// A timeout that begins again while a rank that others wait for has declared a pause
// (dist/groups/pause.h), for at most an hour. Thread-safe.
class Patience {
 public:
  using Clock = AwakeClock;
  // Longer pauses no longer count.
  static constexpr auto kLongestPause = std::chrono::hours(1);

  // Uses the timeout of the options, and their `say` to report pauses.
  Patience(std::shared_ptr<ControlPlane> control, const GroupOptions& options);

  // This rank begins to wait, or has ended its wait.
  void Begin();
  void End();
  // When the wait began, or was last renewed; none if this rank does not wait.
  std::optional<Clock::time_point> since() const;

  // Call it at small intervals compared with the timeout. If half of it has passed and a rank
  // pauses, it begins again: then this returns true, and one of the waiting ranks says why it waits
  // ("rank 0 has been writing a checkpoint for 31 s"), at most once per half of the timeout.
  bool Renew();
  // Whether this rank has waited for too long.
  bool IsOver() const;
  // Renews it; returns whether to continue waiting.
  bool Lasts() {
    Renew();
    return !IsOver();
  }

  // The longest pause, as "; rank 0 has been writing a checkpoint for 3600 s", or "".
  std::string PauseClause() const;

 private:
  const std::shared_ptr<ControlPlane> control_;
  const uint64_t topic_;  // of pauses for which only this group waits
  const std::chrono::milliseconds timeout_;
  const std::function<void(const std::string&)> say_;
  mutable std::mutex mutex_;
  std::optional<Clock::time_point> since_;
};

}  // namespace lockstep::dist
