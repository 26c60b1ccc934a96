// The runs of a folder, live in a browser: what //tools:watch serves.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "models/serve/http_server.h"
#include "models/sweep/compared_runs.h"

namespace lockstep::models {

// Answers GET / with the page of all runs in the folder, which reads itself again every ten
// seconds, and GET /RUN/report.html with a run's report. Thread-safe.
class RunsPages {
 public:
  explicit RunsPages(std::string folder) : folder_(std::move(folder)) {}

  ServerResponse Answer(const ServerRequest& request);

 private:
  const std::string folder_;
  std::mutex mutex_;
  std::vector<ComparedRun> runs_;  // as the last request found them
};

}  // namespace lockstep::models
