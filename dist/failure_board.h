// How ranks learn that one of them has failed, even those that wait for somebody else.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
  std::string purpose;  // of the operation: ProcessGroup::SetPurpose
  std::vector<int> culprits;
  std::string reason;
};

// The error that `rank` throws from `operation` of the group, because of the failure.
CollectiveError ErrorOf(const Failure& failure, const std::string& group, int rank,
                        const Collective& operation, const std::string& purpose = "");

// What a rank heard of first, of all failures of a group and its duplicates. Thread-safe.
class FirstFailure {
 public:
  explicit FirstFailure(int rank) : rank_(rank) {}
  // Only the first call counts, and none of what this rank itself has said by GiveUp.
  void Learn(const std::string& group, const Failure& failure);
  // What this rank says when it gives up: the reason, or what it heard of before, of which the
  // reason is but the consequence.
  Failure GiveUp(const std::string& reason) const;

 private:
  const int rank_;
  mutable std::mutex mutex_;
  std::string group_;
  std::optional<Failure> failure_;
};

// Where a rank is: in a message exchange of a call, or behind it.
struct CallPosition {
  Collective call;  // number 0: none yet
  int64_t step = 0;
  bool busy = false;
};

// One key of a store, on which the first failure is written. A thread waits for it; another one
// tells the store again and again that this process lives, and where it is.
class FailureBoard {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Options {
    int rank = 0;
    // All have heard of a rank whose process is stopped before it has been so for this long, the
    // store's own included; 0: nobody looks. So silence is what is shorter by two beats: signs of
    // life are a beat apart, and news takes time.
    Milliseconds heartbeat{0};
    // Called when a failure is on the board, or when the store is gone, from threads of the board.
    std::function<void(const Failure&)> on_failure;
    // Where this rank is, asked from a thread of the board; may be empty.
    std::function<CallPosition()> position = {};
  };
  // How often positions are told, at least; more often where a heartbeat is short.
  static constexpr Milliseconds kBeat{500};

  FailureBoard(Store& store, Options options);
  ~FailureBoard();
  FailureBoard(const FailureBoard&) = delete;
  FailureBoard& operator=(const FailureBoard&) = delete;

  // The other ranks are not told if this one's process ends from now on.
  void Leave();
  // Writes it unless another is there already, and returns what is there. Thread-safe.
  Failure Post(const Failure& failure);
  // Of `size` ranks, this one's included, as they were at most kBeat ago; without those that have
  // told nothing yet. Thread-safe.
  std::map<int, CallPosition> Positions(int size);
  // Tells the others which ranks' connections have ended here, or by {} that this rank has given up
  // waiting, which may end its connections; what all have told, by rank. Thread-safe.
  void ShareLost(const std::vector<int>& lost);
  std::map<int, std::vector<int>> Lost(int size);

 private:
  Milliseconds BeatTime() const;
  void Watch();
  void Beat();
  void StoreIsGone(const std::string& what);

  const Options options_;
  std::unique_ptr<Store> post_, watch_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  std::atomic<bool> stop_{false};
  std::thread watcher_, heart_;
};

}  // namespace lockstep::dist
