// Watches over NCCL's groups, and aborts their communicators when something is wrong.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "dist/control/failure_board.h"
#include "dist/flight/flight_log.h"
#include "dist/groups/nccl_comm.h"
#include "dist/groups/nccl_work.h"
#include "dist/groups/patience.h"

namespace lockstep::dist {

class NcclWatch;

// The thread that watches all of a process's groups. When the run fails, it ends all of them: the
// threads that wait for one of them continue.
class NcclWatchdog {
 public:
  explicit NcclWatchdog(Device device);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  void Add(NcclWatch* watch);
  // The watch is not used any more.
  void Remove(NcclWatch* watch);
  // Aborts this one with the others, whether it is a group's or not; null: none.
  void SetRoot(std::shared_ptr<NcclComm> root);
  // Gives all groups the failure, and aborts their communicators, at once: one that waits for
  // another to be aborted could hang. Thread-safe.
  void End(const Failure& failure);

 private:
  void Run();

  const Device device_;
  std::mutex watches_mutex_;  // held for short
  std::set<NcclWatch*> watches_;
  std::shared_ptr<NcclComm> root_;
  std::mutex mutex_;  // held while it looks at a group
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

// A group, as the watchdog sees it: the operations in progress, in order. It fails if an operation
// has not ended within the timeout, a rank made a different call or has left, NCCL has an
// asynchronous error, or the run has failed. The control plane answers for each rank what it has
// called, so the culprits are known although NCCL does not know them.
class NcclWatch {
 public:
  // `comm` and `state` are the group's.
  NcclWatch(std::shared_ptr<ControlPlane> control, std::vector<int> members,
            const GroupOptions& options, std::shared_ptr<FailureState> state,
            std::shared_ptr<NcclWatchdog> watchdog);
  ~NcclWatch() { Stop(); }
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // Begins to watch; the communicator outlives it.
  void Start(NcclComm* comm);
  // Nothing is reported from now on.
  void Stop();

  // Records a call that all ranks make.
  void Called(const Collective& c);
  Collective LastCall() const;
  FlightLog Log() const;
  // Call it after the work was submitted.
  void Watch(std::shared_ptr<NcclWork> work);
  // Failures are not recorded from now on: this rank is about to stop.
  void Leave() { leaving_ = true; }

  // Posts the failure unless there is one already, and ends all groups. Thread-safe.
  void Fail(const Failure& failure);
  // Fails because `c` did not end in time, naming the ranks that have not called it.
  void FailForTimeout(const Collective& c, const std::string& purpose);

 private:
  friend class NcclWatchdog;
  using Clock = std::chrono::steady_clock;

  // Called by the watchdog at short intervals.
  void Look();
  // Fails if other ranks' calls show that `c` cannot end.
  void CompareWithOthers(const Collective& c, const std::string& purpose);

  const std::vector<int> members_;
  const GroupOptions options_;
  const std::shared_ptr<FailureState> state_;
  const std::shared_ptr<ControlPlane> control_;
  const std::shared_ptr<NcclWatchdog> watchdog_;
  NcclComm* comm_ = nullptr;

  mutable std::mutex mutex_;
  std::atomic<bool> leaving_{false};
  FlightLog log_;
  Collective last_call_;
  std::deque<std::shared_ptr<NcclWork>> under_way_;
  Patience patience_;  // of the first one
  Clock::time_point next_comparison_;
  std::optional<Clock::time_point> broken_since_;  // NCCL has reported an error

  FailureBoard board_;
};

}  // namespace lockstep::dist
