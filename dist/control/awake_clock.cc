#include "dist/control/awake_clock.h"

#include <mutex>

namespace lockstep::dist {

AwakeClock::time_point AwakeClock::now() {
  static std::mutex mutex;
  static std::chrono::steady_clock::time_point seen = std::chrono::steady_clock::now();
  static duration stopped{0};
  const std::lock_guard<std::mutex> lock(mutex);
  const auto now = std::chrono::steady_clock::now();
  if (now - seen > kGap) stopped += now - seen;
  seen = now;
  return time_point(now.time_since_epoch() - stopped);
}

}  // namespace lockstep::dist
