// Ctrl-C and termination, as users of trainers expect them.
#pragma once

namespace lockstep::models {

// While one exists, the first SIGINT or SIGTERM only sets a flag, so that the step can finish and a
// checkpoint be written; the second leaves the program at once. At most one at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // The signal that came, or 0.
  static int signal();
};

}  // namespace lockstep::models
