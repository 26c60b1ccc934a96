// Saves checkpoints while training continues, each rank its own files.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <thread>

#include "dist/process_group.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/host_snapshot.h"

namespace lockstep::models {

struct CheckpointSaverOptions {
  // Whether a thread writes a snapshot in host memory, so that Save returns as soon as that is
  // made; otherwise Save returns when everything is written.
  bool async = true;
  Device device = kCpu;  // of the model
  // All ranks, only for the saver; null: one rank. A rank that writes for longer than the group's
  // timeout is named, not given up (dist/groups/pause.h).
  dist::ProcessGroup* group = nullptr;
  // How long the destructor waits for a save under way with a group.
  std::chrono::milliseconds patience = std::chrono::seconds(30);
  // The most memory that a snapshot takes.
  int64_t max_snapshot_bytes = std::numeric_limits<int64_t>::max();
  // Receives problems that don't make a call fail. Default: a line to std::cerr.
  CheckpointStore::Warn warn = {};
};

struct SaveContext;

// The ranks of a run save each checkpoint together: rank 0 makes a temporary folder (Store::Save)
// and says which; each rank writes and syncs its files, and reports their hashes or its error; rank
// 0 commits what all of them wrote, and tells the outcome. So there is a checkpoint on all ranks or
// on none, and earlier ones are untouched, whatever dies meanwhile.
//
// There is at most one snapshot: Wait comes before the next Save. A rank without memory for one
// says so once, and from then on writes within Save, while the others wait for it. For use by one
// thread.
class CheckpointSaver {
 public:
  using Collect = std::function<CheckpointFiles(HostSnapshot*)>;

  // Store and group outlive it.
  CheckpointSaver(const CheckpointStore& store, CheckpointSaverOptions options);
  // Waits for what is being written. With a group, if that takes longer than options.patience, the
  // run fails, with the rank that it waits for as the reason; a thread that then still waits for
  // this rank's disk is left behind.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Collective, after Wait. `collect` is called at once; it gets null unless `async`. Throws its
  // errors; errors of writing are thrown by Wait.
  void Save(const Collect& collect);
  // Whether a save has ended since the last Wait.
  bool Ended() const;
  // Whether a thread of this process was left behind, which may still write to the folder.
  static bool has_left_thread();
  // Returns once nothing is being written. If the save since the last Wait has failed, throws on
  // all ranks: an IoError that names path and remedy if the disk is the reason, else what the rank
  // threw (InputError, ArgumentError, OutOfMemoryError or Error); "rank 2: ..." if it was another
  // rank's.
  void Wait();

 private:
  bool EndsWithin(std::chrono::milliseconds time) const;
  void GiveUp();
  void LoseSnapshot();

  const CheckpointSaverOptions options_;
  const int exceptions_;                        // that were being thrown when it was made
  const std::shared_ptr<SaveContext> context_;  // shared with the thread that writes
  bool async_;
  std::future<void> saving_;  // invalid: nothing was saved since the last Wait
  std::thread writer_;
};

}  // namespace lockstep::models
