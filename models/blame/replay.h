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
  std::string checkpoint = {};  // the folder of the one that it goes on from; "": its beginning
};

// Sets the checkpoints of two runs that are equal up to step `last`: those of the newest step up to
// that of which both have one. Later ones may have what differs in them already.
void StartTogether(ReplayedRun& a, ReplayedRun& b, int64_t last);

// Plays the run again in `folder`, which must not exist yet, by its config.toml, from its
// checkpoint to the end of `step`, whose operations it traces (log.ops) and whose steps have
// fingerprints. `event`: whose tensors are kept; may be empty. Its output is folder/log. Throws
// InputError if the program fails, with the end of its output.
void Replay(const ReplayedRun& run, const std::string& folder, int64_t step,
            const std::string& event = "");

// What a replay in the folder left.
std::vector<std::vector<OpEvent>> EventsOf(const std::string& folder, int64_t step, int64_t ranks);

}  // namespace lockstep::models
