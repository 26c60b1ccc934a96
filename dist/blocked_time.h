// How long a thread has waited for other ranks.
#pragma once

#include "dist/work.h"

namespace lockstep::dist {

// Within its scope this thread counts as blocked by other ranks. Scopes do not nest.
class Blocked {
 public:
  Blocked() : since_(Work::Clock::now()) {}
  ~Blocked();
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

  // In all, since this thread began: in Work::Wait and Synchronize of groups on the host, and in
  // Lane::Wait on the CPU. What a device waits for is not in it.
  static Work::Clock::duration Time();

 private:
  const Work::Clock::time_point since_;
};

}  // namespace lockstep::dist
