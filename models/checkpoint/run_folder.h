// What a run finds in its folder, and what that means: nothing there is overwritten or continued
// silently.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/io/file_lock.h"
#include "models/checkpoint/checkpoint.h"
#include "models/options/config.h"

namespace lockstep::models {

struct RunStart {
  std::optional<std::string> checkpoint;  // to resume from
  int64_t step = 0;                       // updates already made
  std::string note;                       // what to tell the user; may be empty
};

// Keeps other trainers, of this machine or another, out of the folder (made if missing) until the
// result is destroyed or the process ends: before anything is written there. Readers need no lock.
// InputError, with the host and process of the one who has it; IoError if nothing can be written
// there. Where the file system has no locks, `warn` is told, and it is as if it were held.
std::unique_ptr<FileLock> LockRunFolder(const std::string& out_dir,
                                        const std::function<void(const std::string&)>& warn);

// Decides how a run with `config` starts in config.out_dir, by config.checkpoint.resume:
//   auto  goes on with an unfinished run of the same configuration, else starts anew in a folder
//         without a run;
//   none  starts anew in a folder without a run;
//   path  goes on from that checkpoint (or run folder), whatever differs: the note lists it.
// InputError, which lists the differences and what to do, where that would touch another run.
// IoError if the folder cannot be written. Damaged checkpoints are told to `warn`.
RunStart PrepareRunFolder(const RunConfig& config,
                          const std::function<void(const std::string&)>& warn);

}  // namespace lockstep::models
