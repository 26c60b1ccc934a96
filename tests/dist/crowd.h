// Many ranks' control planes in one process, with real connections: the light half of a large run.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dist/control/control_plane.h"

namespace lockstep::dist::test {

// Two threads serve all of them, where each rank of a real run has its own.
class Crowd {
 public:
  // The ranks begin to meet.
  explicit Crowd(int size, std::chrono::milliseconds heartbeat = std::chrono::milliseconds(0));
  // The ranks leave, as at the end of a run.
  ~Crowd();

  int size() const { return static_cast<int>(refusals_.size()); }
  ControlPlane& plane(int rank) { return *planes_[static_cast<size_t>(rank)]; }
  // False if not all ranks have met, or been refused, or not as many have learned of a failure.
  bool WaitForOpen(std::chrono::milliseconds timeout);
  bool WaitForFailures(int ranks, std::chrono::milliseconds timeout);
  // The rank's process is gone.
  void Kill(int rank);
  // Why ranks were refused, by rank; empty for those that were not.
  std::vector<std::string> refusals();

 private:
  template <class Predicate>
  bool Wait(std::chrono::milliseconds timeout, const Predicate& done);

  std::mutex mutex_;
  std::condition_variable changed_;
  int opened_ = 0, failed_ = 0;
  std::vector<std::string> refusals_;
  std::vector<std::shared_ptr<ControlPlane>> planes_;
};

}  // namespace lockstep::dist::test
