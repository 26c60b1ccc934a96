// The best plans for a model on a cluster.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/options/options.h"
#include "models/plan/cluster.h"
#include "models/plan/layout.h"
#include "models/plan/step_time.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

struct FoundPlan {
  Layout layout;
  StepTime time;
  double mfu = 0;
  double bytes = 0;    // that a rank needs
  double host = 0;     // of its host's memory
  bool exact = false;  // `bytes` are those of the memory plan; else of its closed form
};

// Plans that fail for one reason.
struct FailedPlans {
  std::string reason;  // a rule's name, or "memory: activations"
  int64_t plans = 0;
  std::string nearest;  // what the rule says of one of them, or the one that lacks least memory
  double lacks = 0;     // bytes, of that one
};

struct SearchOptions {
  // What the search may not change, as "parallel.tp"; empty: what the user wrote.
  std::function<bool(const char* key)> is_fixed{};
  size_t best = 10;           // how many, each with a mesh of its own
  double exact_seconds = 20;  // of CPU time for memory plans; later ones keep the closed form
  int64_t chunks = 2;         // Layout::chunks
};

struct SearchResult {
  std::vector<FoundPlan> best;      // the fastest first; at most one for each mesh
  std::vector<FailedPlans> failed;  // the most frequent first
  std::optional<Layout> nearest;    // of those that fail for memory, the one that lacks least
  int64_t tried = 0, fitted = 0;
};

// `setup`: of PrepareForSearch, whose samples in a step every plan keeps.
// Every layout that divides the cluster is tried by the rules and closed forms; of those that fit,
// the fastest of each mesh are timed by playing their schedules, and then planned exactly.
SearchResult SearchPlans(const Options& options, const RunSetup& setup, const Cluster& cluster,
                         const SearchOptions& search = {});

// The run that `config` describes before it is divided: on one process, with whatever plan the
// user wrote taken out again, and as many samples in a step as it has on all ranks of the cluster.
// In its precision where train.precision was left open. Throws InputError.
RunSetup PrepareForSearch(const Options& options, const RunConfig& config, const Cluster& cluster);

}  // namespace lockstep::models
