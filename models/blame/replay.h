// Playing a step of a run again, to see what every operation gives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/report/fingerprints.h"
#include "models/report/op_events.h"

namespace lockstep::models {

struct ReplayedRun {
  std::string out_dir;    // of the run, which is only read
  std::string train_gpt;  // the program that plays it again
  int64_t ranks = 1;
};

// Plays the run again in `folder`, which it makes or empties, by its config.toml: from its newest
// checkpoint of a step before `step`, or from its beginning, to the end of `step`, whose operations
// it traces (log.ops) and whose steps have fingerprints. `event`: whose tensors are kept; may be
// empty. Its output is folder/log. Throws InputError if it fails, with the end of that.
void Replay(const ReplayedRun& run, const std::string& folder, int64_t step,
            const std::string& event = "");

// What a replay in the folder left.
std::vector<std::vector<OpEvent>> EventsOf(const std::string& folder, int64_t step, int64_t ranks);

}  // namespace lockstep::models
