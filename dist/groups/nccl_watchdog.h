// The thread that ends a communicator of NCCL when something is wrong.
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

// Looks at operations under way, in order: one that has not ended within the timeout, a rank that
// called something else or has left, an asynchronous error of NCCL, a failure of another rank. Then
// the communicator is aborted, so that everybody who waits goes on and hears of it.
//
// What each rank has called lies in the store, at most half a second old: so the culprits are known
// although NCCL does not know them.
class NcclWatchdog {
 public:
  NcclWatchdog(Store& store, int rank, int size, const GroupOptions& options, NcclComm* comm,
               std::shared_ptr<FailureState> state, std::shared_ptr<RankStatus> status);
  ~NcclWatchdog() { Stop(); }
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  // A call that all ranks make.
  void Called(const Collective& c);
  Collective LastCall() const;
  FlightLog Log() const;
  // After it was submitted.
  void Watch(std::shared_ptr<NcclWork> work);
  // What fails from now on is not told to the recorder: this rank is about to stop.
  void Leave() { leaving_ = true; }

  // Tells the others, unless they have failed first, and aborts. Thread-safe.
  void Fail(const Failure& failure);
  // Nobody is told of what happens from now on.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  void Learn(const Failure& failure);
  void Publish();
  void Unpublish();
  // Throws MismatchError, or fails, if other ranks' calls show that `c` cannot end.
  void CompareWithOthers(const Collective& c, const std::string& purpose);
  void AllowForPause();
  void FailForTimeout(const Collective& c, const std::string& purpose);
  std::map<int, FlightLog> Logs();

  const std::unique_ptr<Store> store_;
  const int rank_;
  const GroupOptions options_;
  NcclComm* const comm_;
  const std::shared_ptr<FailureState> state_;
  const std::shared_ptr<RankStatus> status_;

  mutable std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false, published_ = true;
  std::atomic<bool> leaving_{false};
  FlightLog log_;
  PostedLogs posted_;
  Collective last_call_;
  // The first one's turn began at turn_.
  std::deque<std::shared_ptr<NcclWork>> under_way_;
  Clock::time_point turn_;

  FailureBoard board_;
  std::thread thread_;
};

}  // namespace lockstep::dist
