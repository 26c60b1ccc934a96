#include "models/sweep/train_sweep.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/io/file.h"
#include "models/checkpoint/run_folder.h"
#include "models/report/run_progress.h"
#include "models/sweep/compared_runs.h"

namespace lockstep::models {
namespace {

struct Run {
  SweepPoint point;
  std::vector<std::string> command;
  RunConfig config;
};

std::vector<Run> RunsOf(const Sweep& sweep, const std::vector<std::string>& command,
                        const std::string& out_dir, const ReadArguments& read) {
  std::vector<Run> runs;
  for (SweepPoint& point : PointsOf(sweep)) {
    Run run{.point = std::move(point), .command = command};
    std::ranges::copy(ArgumentsOf(run.point), std::back_inserter(run.command));
    run.command.push_back("--out_dir=" + JoinPath(out_dir, run.point.name));
    try {
      run.config = read({run.command.begin() + 1, run.command.end()});
    } catch (const InputError& e) {
      throw InputError(StrCat(e.what(), " (in the run ", run.point.name, " of the sweep)"));
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

std::vector<ComparedRun> WritePage(const std::string& out_dir) {
  std::vector<ComparedRun> runs = FindRuns(out_dir);
  WriteFileAtomically(JoinPath(out_dir, "runs.html"), RenderRuns(out_dir, runs, /*reloads=*/false));
  return runs;
}

}  // namespace

int TrainSweep(const Sweep& sweep, const std::string& out_dir, const dist::LaunchOptions& launch,
               const ReadArguments& read) {
  if (PathExists(JoinPath(out_dir, "config.toml"))) {
    throw InputError(StrCat(out_dir, " is the folder of a run: give the sweep another, by ",
                            "--out_dir=, in which each of its runs has one"));
  }
  const std::vector<Run> runs = RunsOf(sweep, launch.command, out_dir, read);
  MakeDirectories(out_dir);
  std::string failed;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string title = StrCat("run ", i + 1, " of ", runs.size(), ": ", runs[i].point.name);
    if (HoldsFinishedRun(runs[i].config)) {
      Print(title + ": finished");
      continue;
    }
    Print(title);
    dist::LaunchOptions one = launch;
    one.command = runs[i].command;
    const int code = dist::Launch(one);
    WritePage(out_dir);
    if (code >= 128) {
      Print("the sweep was stopped; the same command goes on with it");
      return code;
    }
    if (code != 0) failed += StrCat("\n  ", JoinPath(out_dir, runs[i].point.name));
  }
  Print("\n" + TableOf(WritePage(out_dir)) + "\nall curves: " + JoinPath(out_dir, "runs.html"));
  if (failed.empty()) return 0;
  Print("these failed, and the same command tries them again:" + failed);
  return 1;
}

}  // namespace lockstep::models
