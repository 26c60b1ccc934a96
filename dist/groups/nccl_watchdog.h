// The thread that aborts an NCCL communicator when something is wrong.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "dist/control/failure_board.h"
#include "dist/control/flight_log.h"
#include "dist/groups/nccl_comm.h"
#include "dist/groups/nccl_work.h"

namespace lockstep::dist {

// Watches the operations in progress, in order. It aborts the communicator, so that every waiting
// thread continues and learns of the failure, if an operation has not ended within the timeout, a
// rank made a different call or has left, NCCL has an asynchronous error, or another rank failed.
//
// The control plane answers for each rank what it has called, so the culprits are known although
// NCCL does not know them.
class NcclWatchdog {
 public:
  NcclWatchdog(std::shared_ptr<ControlPlane> control, const GroupOptions& options, NcclComm* comm,
               std::shared_ptr<FailureState> state);
  ~NcclWatchdog() { Stop(); }
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  // Records a call that all ranks make.
  void Called(const Collective& c);
  Collective LastCall() const;
  FlightLog Log() const;
  // Call it after the work was submitted.
  void Watch(std::shared_ptr<NcclWork> work);
  // Failures are not recorded from now on: this rank is about to stop.
  void Leave() { leaving_ = true; }

  // Posts the failure unless there is one already, and aborts. Thread-safe.
  void Fail(const Failure& failure);
  // Nothing is reported from now on.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  void Learn(const Failure& failure);
  // Throws MismatchError, or fails, if other ranks' calls show that `c` cannot end.
  void CompareWithOthers(const Collective& c, const std::string& purpose);
  void AllowForPause();
  void FailForTimeout(const Collective& c, const std::string& purpose);

  const int rank_;
  const GroupOptions options_;
  NcclComm* const comm_;
  const std::shared_ptr<FailureState> state_;
  const std::shared_ptr<ControlPlane> control_;

  mutable std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::atomic<bool> leaving_{false};
  FlightLog log_;
  Collective last_call_;
  // The turn of the first one began at turn_.
  std::deque<std::shared_ptr<NcclWork>> under_way_;
  Clock::time_point turn_;

  FailureBoard board_;
  std::thread thread_;
};

}  // namespace lockstep::dist
