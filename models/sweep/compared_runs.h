// The runs in a folder, compared: a table for terminals, and a page with all curves.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/options/config.h"
#include "models/report/run_history.h"

namespace lockstep::models {

struct ComparedRun {
  std::string name;                 // its folder, from the one that was searched: "lr=1e-3"
  std::optional<RunConfig> config;  // nothing if config.toml is not one of this version
  RunHistory history = RunHistory();
  bool finished = false;
  std::string
      version{};  // of metrics.jsonl, from which the history is: other contents, another one
};

// The folder, if it is that of a run, and all below it that are, by name. Checkpoints are not
// searched. `before`: what an earlier call found, from which histories are taken over that have not
// changed since. Throws IoError.
std::vector<ComparedRun> FindRuns(const std::string& folder, std::vector<ComparedRun> before = {});

// What tells runs apart: the options whose values differ, and each run's values, as TOML writes
// them. Options that only say where and how fast a run is are not among them.
struct RunDifferences {
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> values;  // by run, then by key
};
RunDifferences DifferencesOf(const std::vector<ComparedRun>& runs);

// A line for each group of runs that differ in nothing but their seed: loss, with its standard
// deviation, steps, what tells it from the others, and a folder. The best comes first.
std::string TableOf(const std::vector<ComparedRun>& runs);

// runs.html: one file, no network. `title`: of what these are the runs; `reloads`: the page reads
// itself again every few seconds. Links lead to the runs' reports beside it.
std::string RenderRuns(const std::string& title, const std::vector<ComparedRun>& runs,
                       bool reloads);

}  // namespace lockstep::models
