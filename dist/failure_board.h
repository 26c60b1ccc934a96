// How ranks learn that one of them has failed, even those that wait for somebody else.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dist/collective.h"
#include "dist/store.h"

namespace lockstep::dist {

struct Failure {
  CollectiveError::Cause cause = CollectiveError::Cause::kAborted;
  int rank = 0;  // that reports it
  Collective operation;
  std::vector<int> culprits;
  std::string reason;
};

// The error that `rank` throws from `operation` of the group, because of the failure.
CollectiveError ErrorOf(const Failure& failure, const std::string& group, int rank,
                        const Collective& operation);

// One key of a store, on which the first failure is written. A thread waits for it.
class FailureBoard {
 public:
  // Calls on_failure, once and from that thread, when a failure is on the board, or when the store
  // is gone.
  FailureBoard(Store& store, int rank, std::function<void(const Failure&)> on_failure);
  ~FailureBoard();
  FailureBoard(const FailureBoard&) = delete;
  FailureBoard& operator=(const FailureBoard&) = delete;

  // The other ranks are not told if this one's process ends from now on.
  void Leave();
  // Writes it unless another is there already, and returns what is there. Thread-safe.
  Failure Post(const Failure& failure);

 private:
  void Watch();

  const int rank_;
  const std::function<void(const Failure&)> on_failure_;
  std::unique_ptr<Store> post_, watch_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace lockstep::dist
