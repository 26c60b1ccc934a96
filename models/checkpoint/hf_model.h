// out_dir/model: the newest checkpoint as a Hugging Face folder, which a run makes at its end if
// each rank saves a part. `run_files.json` lists the files that the run has written, so that a run
// replaces or removes only what a run has written and nobody has changed since.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/checkpoint/checkpoint_store.h"

namespace lockstep::models {

// The step whose weights out_dir/model has, if it is still as a run in out_dir made it.
std::optional<int64_t> StepOfHfModel(const std::string& out_dir);

// The same for a run that will replace the folder: InputError, with what to do, if something else
// is there, or a file in it has been added or changed.
std::optional<int64_t> CheckHfModel(const std::string& out_dir);

// Makes it from a checkpoint in parts. A kill leaves the old folder or the new one, or the old one
// as out_dir/.old-model if it comes between two renames. InputError, as from CheckHfModel and
// Consolidate; IoError.
void WriteHfModel(const Checkpoint& checkpoint, const std::string& out_dir);

// Removes the folder if it is still as a run in out_dir made it, and returns the step whose weights
// it had.
std::optional<int64_t> RemoveHfModel(const std::string& out_dir);

}  // namespace lockstep::models
