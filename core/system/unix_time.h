// The time of day.
#pragma once

#include <chrono>

namespace lockstep {

// Seconds since 1970, for records that people or other programs read; not for measuring.
inline double UnixTime() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep
