// A group's entry in the control plane: how its ranks learn of failures, and find out which rank is
// at fault.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist/control/control_plane.h"
#include "dist/flight/flight_log.h"

namespace lockstep::dist {

// Where a rank is: in a message exchange of a call, or past the call.
struct CallPosition {
  Collective call;  // sequence 0: none yet
  int64_t step = 0;
  bool busy = false;
};

// Numbers of transfers, by the other rank, of the world, and whether they come from it.
using TransferCounts = std::map<std::pair<int, bool>, int64_t>;

// What a rank says of its calls.
struct CallLog {
  FlightLog log;             // those that all ranks of the group make
  TransferCounts transfers;  // begun in exchanges of the group
  // "all_reduce #7 (f32[8], sum) of group 'tp'": the call, in any group, in which this rank has
  // been waiting.
  std::string waits_in;
};

// Costs no thread and no connection. Ranks are those of the world. Answers that no rank can have
// given are ignored. Thread-safe.
class FailureBoard {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Options {
    // The group's name, the same on all its ranks, and its ranks.
    std::string group;
    std::vector<int> members;
    // All of these are called on the control plane's thread, and must not block. The first one:
    // once, when the run fails; by the constructor, if it has.
    std::function<void(const Failure&)> on_failure;
    // What this rank answers when others ask where it is, and what it has called; may be empty.
    std::function<CallPosition()> position = {};
    std::function<CallLog()> log = {};
    // At small intervals compared with the timeout of the group's calls; may be empty.
    Milliseconds timeout{0};
    std::function<void()> on_beat = {};
  };

  FailureBoard(std::shared_ptr<ControlPlane> plane, Options options);
  ~FailureBoard();
  FailureBoard(const FailureBoard&) = delete;
  FailureBoard& operator=(const FailureBoard&) = delete;

  // Makes this the run's failure unless there is one already; returns the one that counts.
  Failure Post(Failure failure);
  // The positions of the ranks, this one included, as ControlPlane::Ask answers. Ranks that do not
  // know the group have called nothing.
  Answers<CallPosition> Positions();
  // The ranks' calls with that number, and their last ones; the rest as in CallLog.
  struct Calls {
    bool has_group = false;  // the rank has made it
    std::optional<Collective> at = {};
    Collective last = {};  // sequence 0: none yet
    TransferCounts transfers = {};
    std::string waits_in = {};
  };
  Answers<Calls> CallsAt(int64_t sequence);
  // ShareLost tells the others which ranks' connections have ended here, or, with {}, that this
  // rank timed out. Lost returns what every rank has shared.
  void ShareLost(const std::vector<int>& lost);
  Answers<std::vector<int>> Lost();

 private:
  std::string Respond(const std::string& question);
  Answers<std::string> Ask(const std::string& question);

  const std::shared_ptr<ControlPlane> plane_;
  const Options options_;
  const uint64_t topic_;
  std::mutex mutex_;
  std::optional<std::vector<int>> lost_;
  int listener_ = 0, ticker_ = 0;
};

}  // namespace lockstep::dist
