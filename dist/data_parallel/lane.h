// Runs communication concurrently with computation.
#pragma once

#include <functional>
#include <memory>

#include "core/device.h"

namespace lockstep::dist {

// Runs jobs one after another, concurrently with the thread that submits them: on the CPU on a
// separate thread, on CUDA on a separate stream (a job then runs at once, and submits its work to
// that stream, which is current meanwhile). For use by one thread.
class Lane {
 public:
  using Job = std::function<void()>;

  virtual ~Lane() = default;
  // The job runs after earlier jobs, and after what this thread has computed or submitted to its
  // current stream so far.
  virtual void Submit(Job job) = 0;
  // Orders this thread's subsequent work after all jobs: on the CPU it blocks, on CUDA it makes the
  // current stream wait. Rethrows the exception of the first job that failed; later jobs did not
  // run. Afterwards the lane is empty and can be used again.
  virtual void Wait() = 0;
};

// The destructor waits for the running job and drops the others.
std::unique_ptr<Lane> MakeLane(Device device);

}  // namespace lockstep::dist
