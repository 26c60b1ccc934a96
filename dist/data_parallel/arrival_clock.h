// How long a rank takes to reach the sums of its gradients.
#pragma once

#include <memory>

#include "dist/process_group.h"

namespace lockstep::dist {

// All ranks have a step's sums at about the same time, and begin the next step then: so the time
// from there until a rank's own gradients are complete says how much later than others it arrives,
// though no clock is compared with another rank's. What the thread was blocked by others meanwhile
// (Blocked) is left out, so that a rank that others hold up within a step is not taken for slow.
//
// On a GPU both moments are those of the device (ProcessGroup::Mark), however far the host is
// ahead, and are read once the device has passed them; a step that begins before is not measured.
// What the device itself waits for within a step, as for gathered weights, is not left out there.
class ArrivalClock {
 public:
  // A null group: a single rank, for which nothing is measured.
  explicit ArrivalClock(ProcessGroup* group) : group_(group) {}

  // Once a step each, on the thread that computes: this rank's gradients are complete, or submitted
  // to its current stream; all sums are there, or that stream waits for them.
  void Computed();
  void Summed();

  // From a step's Summed to the next step's Computed; 0 while that is not known.
  double ms() const { return ms_; }

 private:
  using Clock = Work::Clock;

  ProcessGroup* const group_;
  double ms_ = 0;
  Clock::time_point summed_;
  Clock::duration blocked_{};  // Blocked::Time at that time
  // On a GPU: of the step that is measured, and the sums of the last one.
  std::shared_ptr<Moment> device_summed_before_, device_computed_, device_summed_;
  double blocked_ms_ = 0;  // before device_computed_
};

}  // namespace lockstep::dist
