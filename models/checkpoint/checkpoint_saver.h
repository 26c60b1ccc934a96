// Saves checkpoints while training continues, each rank its own files.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>

#include "dist/data_parallel/lane.h"
#include "dist/process_group.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/host_snapshot.h"

namespace lockstep::models {

struct CheckpointSaverOptions {
  // Whether a thread writes a snapshot in host memory, and Save returns as soon as that is made;
  // otherwise Save returns when all is written.
  bool async = true;
  Device device = kCpu;  // of the model
  // All ranks, for the saver alone; null: one rank. Where `async`, ranks wait in its calls for the
  // slowest to write, so its timeout should be long: ranks that are gone are noticed at once
  // whatever it is.
  dist::ProcessGroup* group = nullptr;
};

// The ranks of a run save each checkpoint together: rank 0 makes a temporary folder (Store::Save)
// and says which; each rank writes and syncs its files, and reports their hashes or its error; rank
// 0 commits what all of them wrote, and tells the outcome. So there is a checkpoint on all ranks or
// on none, and whatever dies meanwhile, those before it are untouched.
//
// There is at most one snapshot: Wait comes before the next Save. For use by one thread.
class CheckpointSaver {
 public:
  using Collect = std::function<CheckpointFiles(HostSnapshot*)>;

  // Store and group outlive it.
  CheckpointSaver(CheckpointStore& store, const CheckpointSaverOptions& options);
  // Waits for what is being written, at most half a minute for other ranks.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Collective, after Wait. `collect` is called at once; it gets null unless `async`. Its errors
  // are thrown, those of writing by Wait.
  void Save(const Collect& collect);
  // Whether a save has ended since the last Wait.
  bool Ended() const;
  // Returns once nothing is being written. If the save since the last Wait has failed, throws on
  // all ranks, an IoError that names path and remedy if the disk is the reason; "rank 2: ..." where
  // it was another rank's.
  void Wait();

 private:
  void Write(const CheckpointFiles& files);

  CheckpointStore& store_;
  const CheckpointSaverOptions options_;
  HostSnapshot snapshot_;
  std::future<void> saving_;  // invalid: nothing was saved since the last Wait
  std::unique_ptr<dist::Lane> lane_;
};

}  // namespace lockstep::models
