// How ranks learn that one of them has failed, even while they wait for another rank.
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
  int rank = 0;  // the one that reports it
  Collective operation;
  std::string purpose;  // the operation's (the argument of ProcessGroup's calls)
  std::vector<int> culprits;
  std::string reason;
};

// The error that `rank` throws from the group's `operation` because of the failure.
CollectiveError ErrorOf(const Failure& failure, const std::string& group, int rank,
                        const Collective& operation, const std::string& purpose = "");

// Work of one rank for which others wait (dist/control/pause.h).
struct DeclaredPause {
  int rank = 0;
  std::string what;
  std::chrono::milliseconds age{0};
};
// "rank 0 has been writing a checkpoint for 31 s"
std::string Describe(const DeclaredPause& pause);

// The state that a rank's group shares with its duplicates: the failure it learned of first, and
// the pause it has declared. Thread-safe.
class RankStatus {
 public:
  explicit RankStatus(int rank) : rank_(rank) {}
  // Only the first call counts. Ignores failures that this rank itself reported by GiveUp.
  void Learn(const std::string& group, const Failure& failure);
  // The failure that this rank reports when it gives up: `reason`, or an earlier failure that it
  // learned of, since the reason is then only a consequence.
  Failure GiveUp(const std::string& reason) const;

  // Pauses nest; only the outermost counts.
  void BeginPause(std::string what);
  void EndPause();
  std::optional<DeclaredPause> pause() const;
  // Whether to tell the user now why this rank waits: at most once per `interval`.
  bool MayReportPause(std::chrono::milliseconds interval);

 private:
  using Clock = std::chrono::steady_clock;

  const int rank_;
  mutable std::mutex mutex_;
  std::string group_;
  std::optional<Failure> failure_;
  int pauses_ = 0;
  std::string pause_;
  Clock::time_point paused_at_;
  std::optional<Clock::time_point> last_report_;
};

// Where a rank is: in a message exchange of a call, or past the call.
struct CallPosition {
  Collective call;  // sequence 0: none yet
  int64_t step = 0;
  bool busy = false;
};

// A key of the store that holds the first failure. One thread waits for it; another sends
// heartbeats that say where this rank is. Values that no board can have written are never trusted:
// one in the failure's key ends the group and is shown in the error; others are ignored.
class FailureBoard {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Options {
    int rank = 0, size = 1;  // of the group
    // Every rank learns within this time that a rank's process is stopped, even if it is the one
    // that serves the store; 0: off. The store therefore reports a silence that is two beats
    // shorter: heartbeats are a beat apart, and news takes time.
    Milliseconds heartbeat{0};
    // Called from the board's threads when a failure is posted or the store is gone.
    std::function<void(const Failure&)> on_failure;
    // Where this rank is; called from a thread of the board; may be empty.
    std::function<CallPosition()> position = {};
    // The rank's pauses are published from here; may be null.
    std::shared_ptr<const RankStatus> status = nullptr;
    // The timeout of the group's calls; a beat is a small part of it. 0: none.
    Milliseconds timeout{0};
    // Called after each beat, from a thread of the board; may be empty.
    std::function<void()> on_beat = {};
  };
  // The longest time between heartbeats; it is less if `heartbeat` or `timeout` is short.
  static constexpr Milliseconds kBeat{500};
  // Longer pauses no longer suspend timeouts.
  static constexpr Milliseconds kLongestPause = std::chrono::hours(1);

  FailureBoard(Store& store, Options options);
  ~FailureBoard();
  FailureBoard(const FailureBoard&) = delete;
  FailureBoard& operator=(const FailureBoard&) = delete;

  // Tells the store where this rank is, or, if it has not moved, only that it is alive. The board
  // does so at each beat. Throws StoreError. Thread-safe.
  void SendHeartbeat();
  // Call once, when all ranks have reached their last call: deletes what this rank has published,
  // and no longer reports the end of its process to the others.
  void Leave();
  // Posts the failure unless there is one already; returns the posted one. Thread-safe.
  Failure Post(const Failure& failure);
  // The positions of all ranks, including this one, at most kBeat old; without ranks that have
  // published none yet. Thread-safe.
  std::map<int, CallPosition> Positions();
  // ShareLost tells the others which ranks' connections have ended here, or, with {}, that this
  // rank timed out, which may end its connections. Lost returns what every rank has shared.
  // Thread-safe.
  void ShareLost(const std::vector<int>& lost);
  std::map<int, std::vector<int>> Lost();
  // A pause that some rank (possibly this one) has declared and renewed since the last call, which
  // shows that the rank is alive. If there are several, any one. Call from one thread only. Throws
  // StoreError.
  std::optional<DeclaredPause> LivePause();
  // The last published pause, as "; rank 0 has been writing a checkpoint for 3600 s", or "".
  // Thread-safe.
  std::string PauseClause();

 private:
  Milliseconds BeatTime() const;
  void Watch();
  void Beat();
  void Stop();
  std::optional<std::string> Read(const char* what, int rank);
  void PublishPause();
  void StoreIsGone(const std::string& what);

  const Options options_;
  std::unique_ptr<Store> post_, watch_;
  std::string published_pause_, seen_pause_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  std::atomic<bool> stop_{false};
  std::mutex heartbeat_mutex_;
  std::string sent_position_;
  std::thread watcher_, heart_;
};

}  // namespace lockstep::dist
