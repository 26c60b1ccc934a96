// The training step as a forward saw it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/step_state.h"

namespace lockstep {

// Lets a forward run again later with the step as it was: whether there was one, and the same
// random numbers, whatever has become of the StepState since.
class StepReplay {
 public:
  // The forward runs within its lifetime, on this thread.
  class Recording {
   public:
    explicit Recording(StepReplay& replay);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

    // For step_state.cc: random numbers are drawn from the current state; a site was handed out.
    static void NoteDraw();
    static void NoteSite(uint64_t site);

   private:
    StepReplay& replay_;
    bool copied_ = false;
    Recording* outer_;  // which must hear of the same: it runs this forward again, too
  };

  // The forward runs again within its lifetime, on this thread or another.
  class Replaying {
   public:
    explicit Replaying(const StepReplay& replay);
    ~Replaying();
    Replaying(const Replaying&) = delete;
    Replaying& operator=(const Replaying&) = delete;

    static Replaying* OfThisThread();
    uint64_t NextSite();

   private:
    const StepReplay& replay_;
    size_t next_ = 0;
    const StepState* state_;  // of the thread, without this
    Recording* recording_;
    Replaying* previous_;
  };

 private:
  std::optional<StepState> state_;  // a copy, once random numbers are drawn
  std::vector<uint64_t> sites_;     // in the order in which they were handed out
};

}  // namespace lockstep
