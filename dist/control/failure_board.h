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

#include "dist/control/store.h"
#include "dist/groups/collective.h"

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

// What a rank does by itself while others wait (dist/control/pause.h).
struct DeclaredPause {
  int rank = 0;
  std::string what;
  std::chrono::milliseconds age{0};
};
// "rank 0 has been writing a checkpoint for 31 s"
std::string Describe(const DeclaredPause& pause);

// What a rank's group and its duplicates have in common: the failure that it heard of first, and
// the pause that it has declared. Thread-safe.
class RankStatus {
 public:
  explicit RankStatus(int rank) : rank_(rank) {}
  // Only the first call counts, and none of what this rank itself has said by GiveUp.
  void Learn(const std::string& group, const Failure& failure);
  // What this rank says when it gives up: the reason, or what it heard of before, of which the
  // reason is but the consequence.
  Failure GiveUp(const std::string& reason) const;

  // Of scopes within each other the outermost counts.
  void BeginPause(std::string what);
  void EndPause();
  std::optional<DeclaredPause> pause() const;
  // Whether the user should be told now why this rank waits: not again within `apart`.
  bool TellsNow(std::chrono::milliseconds apart);

 private:
  using Clock = std::chrono::steady_clock;

  const int rank_;
  mutable std::mutex mutex_;
  std::string group_;
  std::optional<Failure> failure_;
  int pauses_ = 0;
  std::string pause_;
  Clock::time_point paused_at_;
  std::optional<Clock::time_point> told_;
};

// Where a rank is: in a message exchange of a call, or behind it.
struct CallPosition {
  Collective call;  // number 0: none yet
  int64_t step = 0;
  bool busy = false;
};

// One key of a store, on which the first failure is written. A thread waits for it; another one
// tells the store again and again that this process lives, and where it is. Notes that no board has
// written are never obeyed: one in the place of a failure ends the group, and is shown; others are
// passed over.
class FailureBoard {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Options {
    int rank = 0, size = 1;  // of the group
    // All have heard of a rank whose process is stopped before it has been so for this long, the
    // store's own included; 0: nobody looks. So silence is what is shorter by two beats: signs of
    // life are a beat apart, and news takes time.
    Milliseconds heartbeat{0};
    // Called when a failure is on the board, or when the store is gone, from threads of the board.
    std::function<void(const Failure&)> on_failure;
    // Where this rank is, asked from a thread of the board; may be empty.
    std::function<CallPosition()> position = {};
    // Whose pauses are told; may be null.
    std::shared_ptr<const RankStatus> status = nullptr;
    // Of the group's calls, of which a beat is a small part; 0: none.
    Milliseconds timeout{0};
    // Called after each beat, from a thread of the board; may be empty.
    std::function<void()> on_beat = {};
  };
  // How often positions are told, at least; more often where a heartbeat is short.
  static constexpr Milliseconds kBeat{500};
  // Nobody waits for a pause that is longer.
  static constexpr Milliseconds kLongestPause = std::chrono::hours(1);

  FailureBoard(Store& store, Options options);
  ~FailureBoard();
  FailureBoard(const FailureBoard&) = delete;
  FailureBoard& operator=(const FailureBoard&) = delete;

  // What the heart does again and again: tells the store where this rank is, or only that it lives.
  // StoreError. Thread-safe.
  void Tell();
  // Once all ranks have come to their last call: the others are not told if this one's process ends
  // from now on, and what it has told of itself is deleted. Once.
  void Leave();
  // Writes it unless another is there already, and returns what is there. Thread-safe.
  Failure Post(const Failure& failure);
  // Of all ranks, this one's included, as they were at most kBeat ago; without those that have
  // told nothing yet. Thread-safe.
  std::map<int, CallPosition> Positions();
  // Tells the others which ranks' connections have ended here, or by {} that this rank has given up
  // waiting, which may end its connections; what all have told, by rank. Thread-safe.
  void ShareLost(const std::vector<int>& lost);
  std::map<int, std::vector<int>> Lost();
  // The pause that a rank, this one too, has declared and is alive in: it has said so anew since
  // the last call. Of several, one. For one thread. StoreError.
  std::optional<DeclaredPause> LivePause();
  // "; rank 0 has been writing a checkpoint for 3600 s", as it was told last, or "". Thread-safe.
  std::string PauseClause();

 private:
  Milliseconds BeatTime() const;
  void Watch();
  void Beat();
  void Stop();
  std::optional<std::string> Read(const char* what, int rank);
  void TellPause();
  void StoreIsGone(const std::string& what);

  const Options options_;
  std::unique_ptr<Store> post_, watch_;
  std::string told_pause_, seen_pause_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  std::atomic<bool> stop_{false};
  std::mutex tell_mutex_;
  std::string told_;
  std::thread watcher_, heart_;
};

}  // namespace lockstep::dist
