// Checkpoints that are read from elsewhere: from the mirror of a run, or from s3://...
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/checkpoint_store.h"
#include "models/store/object_store.h"

namespace lockstep::models {

// The records of a run's steps, which a mirror has beside its checkpoints.
inline constexpr const char* kRunRecords[] = {"metrics.jsonl", "samples.jsonl"};

// A folder with the checkpoint that s3://... names: a checkpoint (.../checkpoints/step-00001000),
// or the place of a run, of which it takes the newest, or with `best` that with the lowest
// validation loss; .../latest and .../best say which. The folder is one of a cache
// ($XDG_CACHE_HOME/lockstep or ~/.cache/lockstep); what is not there is copied and verified, by one
// process of the machine. Within a process the same URL leads to the same folder. InputError if
// there is none.
std::string FetchCheckpoint(const std::string& url, bool best);

// What a run that has a mirror begins with.
struct MirrorStart {
  std::string place, out_dir;
  CheckpointStore::Options keeps{};
  // Gets the state of the newest checkpoint there, and whether it was saved after all in out_dir.
  // Says whether it is to be copied; throws if it is of another run.
  std::function<bool(const TrainerState& state, bool is_newer)> check;
  StoreOptions store{.attempts = 5};
};

// Checks that the place can be used. Copies its newest checkpoint, the newest pinned one, with
// keeps.keep_best the best one, and the records of steps into out_dir, if `check` says so; returns
// the step, or none if nothing was copied. Damaged checkpoints are passed over with a warning.
std::optional<int64_t> CopyFromMirror(const MirrorStart& start);

}  // namespace lockstep::models
