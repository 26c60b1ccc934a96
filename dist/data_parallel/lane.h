// Where communication goes on beside computation.
#pragma once

#include <functional>
#include <memory>

#include "core/device.h"

namespace lockstep::dist {

// Runs jobs one after another, beside the thread that submits them: on the CPU on a thread of its
// own, on CUDA on a stream of its own (then the job runs at once, and submits to its current
// stream). One thread uses a lane.
class Lane {
 public:
  using Job = std::function<void()>;

  virtual ~Lane() = default;
  // The job comes after the jobs before it, and after what this thread computed or submitted to its
  // current stream so far.
  virtual void Submit(Job job) = 0;
  // Orders what this thread does next behind all jobs: the CPU's waits, CUDA's makes the current
  // stream wait. Throws what the first job that failed threw; those after it did not run. The lane
  // is empty then, and can be used again.
  virtual void Wait() = 0;
};

// The destructor lets the job that runs end, and drops the others.
std::unique_ptr<Lane> MakeLane(Device device);

}  // namespace lockstep::dist
