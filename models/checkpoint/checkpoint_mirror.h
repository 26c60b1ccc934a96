// Copies a run's checkpoints to another place while training continues.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "models/checkpoint/checkpoint_store.h"
#include "models/checkpoint/remote_checkpoints.h"
#include "models/store/object_store.h"

namespace lockstep::models {

struct MirrorOptions {
  // What is kept there, as CheckpointStore::Options says it of the run folder.
  int64_t keep = 0;
  bool keep_best = false;
  // How long Finish waits without a byte moving, and at the most.
  std::chrono::milliseconds patience = std::chrono::minutes(2), longest = std::chrono::hours(1);
  // Receives problems, which don't make a call fail, and what Finish waits for.
  CheckpointStore::Warn warn{}, say{};
  StoreOptions store{};  // but for `stop` and `moved`
};

// A thread of its own brings the place up to date with the run folder whenever it is told to: the
// records of steps, the newest checkpoint, then older ones that are kept. What is being copied is
// held, so that the run does not remove it meanwhile. If checkpoints are saved faster than they are
// copied, those in between are left out. A failure is a warning, and copying is tried again at the
// next call. One process of a run has a mirror.
class CheckpointMirror {
 public:
  // Begins with what is in the folder already. InputError for a place that cannot be one.
  CheckpointMirror(std::string out_dir, const std::string& place, MirrorOptions options);
  // Ends what is under way, at once.
  ~CheckpointMirror();
  CheckpointMirror(const CheckpointMirror&) = delete;
  CheckpointMirror& operator=(const CheckpointMirror&) = delete;

  // There may be something new in the run folder. Returns at once.
  void Update();
  // Waits until the place has what the run folder has, for as long as the options allow and `stop`
  // returns false. Returns whether it has; else a warning says what is missing, and why.
  bool Finish(const std::function<bool()>& stop);

 private:
  void Run();
  void BringUpToDate();
  void Look();
  std::vector<Checkpoint> Missing() const;
  void CopyRecords();

  const std::string out_dir_;
  const MirrorOptions options_;
  std::stop_source stop_;
  std::atomic<int64_t> moved_ = 0;
  const std::unique_ptr<ObjectStore> store_;
  RemoteCheckpoints remote_;
  bool looked_ = false;                            // of the thread: whether it knows what is there
  std::map<std::string, RemoteCheckpoint> there_;  // of the thread: what is, by name

  std::mutex mutex_;
  std::condition_variable changed_;
  bool asked_ = true, busy_ = false;  // whether there may be something to copy; it is being copied
  std::string missing_ = "the newest checkpoint";  // as far as it is known; empty: nothing
  std::string problem_;                            // of the last attempt; empty: none
  std::thread thread_;
};

}  // namespace lockstep::models
