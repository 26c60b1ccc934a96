// Watches over NCCL's groups, and aborts their communicators when something is wrong.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "dist/control/awake_clock.h"
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
  NcclWatchdog(std::shared_ptr<ControlPlane> control, Device device);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  void Add(NcclWatch* watch);
  // The watch is not used any more.
  void Remove(NcclWatch* watch);
  // Aborts this one with the others, whether it is a group's or not; null: none.
  void SetRoot(std::shared_ptr<NcclComm> root);
  // Gives all groups the failure, and has another thread abort their communicators, at once: one
  // that waits for another to be aborted could hang. Thread-safe; does not block.
  void End(const Failure& failure);
  // What one of the groups has waited in for a while ("all_reduce #7 (f32[8], sum) of group 'tp'"),
  // or "". Thread-safe; does not block.
  std::string WaitsIn();

 private:
  void Run();

  const std::shared_ptr<ControlPlane> control_;
  const Device device_;
  std::mutex mutex_;  // held for short
  std::condition_variable changed_;
  std::set<NcclWatch*> watches_;
  std::shared_ptr<NcclComm> root_;
  const NcclWatch* looks_at_ = nullptr;
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

  // Begins to watch.
  void Start(std::shared_ptr<NcclComm> comm);
  // Nothing is reported from now on.
  void Stop();

  // Records a call that all ranks make.
  void Called(const Collective& c);
  // Records the transfers of an exchange; returns how many its peers must have begun for it to end.
  TransferCounts Called(const std::vector<Transfer>& transfers);
  Collective LastCall() const;
  FlightLog Log() const;
  // Call it after the work was submitted.
  void Watch(std::shared_ptr<NcclWork> work);
  // The caller begins to wait for what the others say of `c`: how long it does, until End.
  Patience& Waits(const Collective& c);
  // Failures are not recorded from now on: this rank is about to stop.
  void Leave() { leaving_ = true; }

  // Posts the failure unless there is one already, and ends all groups. Thread-safe.
  void Fail(const Failure& failure);
  // Fails because `c`, for which this rank has waited since then, did not end in time, naming the
  // ranks that have not called it; `needs` as of NcclWork, `where` it waits, or "". If all of those
  // wait for others themselves, it returns for the first seconds: they may know better.
  void FailForTimeout(const Collective& c, const std::string& purpose, const TransferCounts& needs,
                      const std::string& where, std::optional<AwakeClock::time_point> since);
  // Fails because NCCL says in `c` that another rank is gone, naming those that do not answer or
  // have no such group; but first leaves the control plane time to name the rank whose process
  // ended.
  void FailForLostRank(const Collective& c, const std::string& error);

 private:
  friend class NcclWatchdog;
  using Clock = AwakeClock;

  // Called by the watchdog at short intervals.
  void Look();
  // The first operation in progress; null: none.
  std::shared_ptr<NcclWork> First() const;
  // Fails if other ranks' calls show that the work cannot end.
  void CompareWithOthers(const NcclWork& work);
  void FailForNccl(const std::string& error, const Collective& c);
  bool TakesPart(const Collective& c, const TransferCounts& needs, int rank,
                 const FailureBoard::Calls& theirs) const;
  // The group's calls throw it from now on. Returns false if it has failed before.
  bool Learn(const Failure& failure);
  std::string WaitsIn() const;

  const std::vector<int> members_;
  const GroupOptions options_;
  const std::shared_ptr<FailureState> state_;
  const std::shared_ptr<ControlPlane> control_;
  const std::shared_ptr<NcclWatchdog> watchdog_;
  std::shared_ptr<NcclComm> comm_;

  mutable std::mutex mutex_;  // never held while CUDA or NCCL is called: answers need it
  std::atomic<bool> leaving_{false};
  FlightLog log_;
  TransferCounts transfers_;
  Collective last_call_, compared_;
  std::deque<std::shared_ptr<NcclWork>> under_way_;
  Patience patience_, comparing_;  // of the first one, and of a thread that compares a call
  // Used by the watchdog only.
  Clock::time_point next_comparison_;
  std::optional<Clock::time_point> broken_since_;  // NCCL has reported an error

  FailureBoard board_;
};

}  // namespace lockstep::dist
