// How a run starts from what is in its folder: nothing there is overwritten or continued silently.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/io/file_lock.h"
#include "models/checkpoint/checkpoint.h"
#include "models/options/config.h"

namespace lockstep::data {
struct SharedDatasets;
}

namespace lockstep::models {

struct RunStart {
  std::optional<std::string> checkpoint{};  // to resume from
  int64_t step = 0;                         // updates already made
  std::string note{};                       // for the user; may be empty
  bool accepts_differences = false;         // checkpoint.resume names the checkpoint
  bool is_own = true;                       // the checkpoint lies in the run's folder
  // If there is no checkpoint: the main rank's init_from, and the folder that it leads to; may be
  // empty.
  std::string init_from{}, weights{};
  // What is known about the files of data (DatasetOptions::known_files).
  std::vector<data::FileContent> known_files{};
  // How the ranks of a machine share texts that one of them encodes; null: they do not.
  std::shared_ptr<data::SharedDatasets> shared{};
  std::optional<HeldCheckpoint> held{};  // the checkpoint, if another run may remove it
  bool evaluates = false;                // --eval_only: there are no steps and no optimizer
  // Of an elastic run that goes on from the memory of its processes: what a checkpoint of the last
  // step would hold. `step` is that step then.
  std::optional<TrainerState> going_on{};
  // With train.time_budget, on the main rank: the seconds that the run has taken before this
  // process, also for steps that are thrown away.
  double seconds = 0;
};

// Gives a run what it leaves open and `before`, from which it goes on, has settled:
// train.loss_chunk and optim.warmup, and with train.time_budget, unless it has more time now, its
// steps and where the decay begins.
void TakeOverSettled(const RunConfig& before, RunConfig* config);

// Keeps other trainers, on this machine or another, out of the folder (made if missing) until the
// result is destroyed or the process ends; waits for one that is ending. Call it before writing
// anything there; readers need no lock. InputError, naming the host and process of the holder, if
// the folder is locked, and if it is the folder of a model; IoError if it can't be written. If the
// file system has no locks, `warn` is told and the run goes without.
std::unique_ptr<FileLock> LockRunFolder(const std::string& out_dir,
                                        const CheckpointStore::Warn& warn,
                                        std::chrono::seconds patience = std::chrono::seconds(2));

// What the schedule of a run, `before`, would have had otherwise in its first `step` steps if it
// had been `now` from the start, as a sentence; "": nothing.
using ChangedPast =
    std::function<std::string(const RunConfig& before, const RunConfig& now, int64_t step)>;

// Decides how a run with `config` starts in config.out_dir, by config.checkpoint.resume:
//   auto  continues an unfinished run of the same configuration, or starts from scratch in a folder
//         without a run. A run, finished or not, also goes on with other train.steps, if nothing
//         else differs, and nothing of its past (`changed_past`), and one that has more
//         train.time_budget now than when its decay began goes on from the checkpoint before
//         that; the note says so;
//   none  starts from scratch in a folder without a run;
//   path  continues from that checkpoint (or run folder); the note lists differing options, and
//         says what of the past would have been otherwise. With more train.time_budget, of a run
//         folder it is the checkpoint before the decay, and later ones are thrown away. A run
//         that began so, and has made a checkpoint of its own, goes on from that as with auto.
// With checkpoint.mirror, what that has of the run and the folder lacks is copied first.
// If that would touch another run, throws an InputError that lists the differences and what to do.
// IoError if the folder cannot be written. Damaged checkpoints are reported to `warn`.
RunStart PrepareRunFolder(const RunConfig& config, const CheckpointStore::Warn& warn,
                          const ChangedPast& changed_past);

// Writes config.toml into the folder of a run that begins or continues, with comments that say what
// was `settled` differently. Throws IoError.
void BeginRun(const RunConfig& config, const RunConfig& settled);

// Marks the run as finished, with the file DONE: its last checkpoint and all that follows from it
// are there. Without the mark, the same command continues from the last checkpoint. Throws IoError.
void MarkEnd(const std::string& out_dir, int64_t step);
bool IsFinished(const std::string& out_dir);
// Whether config.out_dir holds a run of this configuration that is finished. Throws InputError if
// its config.toml cannot be read.
bool HoldsFinishedRun(const RunConfig& config);

}  // namespace lockstep::models
