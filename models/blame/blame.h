// //tools:blame: where two runs that should be equal part.
#pragma once

#include <functional>
#include <string>

namespace lockstep::models {

struct BlameOptions {
  std::string a, b;                      // run folders
  std::string train_gpt_a, train_gpt_b;  // the programs that play them again
  std::string folder;                    // where they are played; empty: in a temporary folder
  bool replays = true;                   // else only the fingerprints are compared
};

// Compares what the runs recorded (log.fingerprints), plays both again where they part, and says
// what differs first; each line goes to `say`. Returns whether the runs are equal. The runs'
// folders are only read. InputError if they cannot be compared or played.
bool Blame(const BlameOptions& options, const std::function<void(const std::string&)>& say);

}  // namespace lockstep::models
