#include "models/sweep/watch_runs.h"

#include "core/error.h"
#include "core/io/file.h"

namespace lockstep::models {
namespace {

ServerResponse Page(std::string html) {
  return {.type = "text/html; charset=utf-8", .body = std::move(html)};
}

ServerResponse Refusal(int status, std::string text) {
  return {.status = status, .type = "text/plain; charset=utf-8", .body = std::move(text)};
}

}  // namespace

ServerResponse RunsPages::Answer(const ServerRequest& request) {
  if (request.method != "GET") return Refusal(405, "only GET is answered here\n");
  const std::scoped_lock lock(mutex_);
  try {
    runs_ = FindRuns(folder_, std::move(runs_));
    if (request.path == "/") return Page(RenderRuns(folder_, runs_, /*reloads=*/true));
    // Only the reports of runs that were found: no other path leads to a file.
    for (const ComparedRun& run : runs_) {
      const std::string report = JoinPath(run.name, "report.html");
      const std::string file = JoinPath(folder_, report);
      if (request.path == "/" + report && PathExists(file)) return Page(ReadFile(file));
    }
    return Refusal(404, "there is no such run, or it has no report yet\n");
  } catch (const IoError& e) {
    runs_.clear();
    return Refusal(500, StrCat(e.what(), "\n"));
  }
}

}  // namespace lockstep::models
