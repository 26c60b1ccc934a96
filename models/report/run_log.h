// What a run records in its folder for people: metrics.jsonl, samples.jsonl, report.html,
// tensorboard/.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "models/report/json_lines.h"
#include "models/report/metrics.h"
#include "models/report/report.h"
#include "models/report/run_history.h"
#include "models/report/tensorboard.h"
#include "models/report/trace.h"

namespace lockstep::models {

// Records continue where those of an earlier run in the folder end. Once constructed, this never
// throws if the disk fails: it calls `warn` once per kind of record, and training continues.
class RunLog {
 public:
  using Warn = std::function<void(const std::string&)>;

  // `input`: for the report, without samples and time. `first_step`: the first step of this run;
  // records of it and of later steps are dropped. `trace` may be null. IoError.
  RunLog(std::string folder, ReportInput input, int64_t first_step, TraceRecorder* trace,
         Warn warn);

  // Adds a line of metrics, with the time that Timed has recorded since the last line. `last`: with
  // the ledger of the run, in which no step follows.
  void Step(StepMetrics metrics, bool last = false);
  void Sample(TextSample sample);
  // For the report, in place of what the constructor got.
  void Replan(ReportInput input);
  // RunPlan::best_checkpoint, for the report.
  void SetBestCheckpoint(int64_t step) { input_.plan.best_checkpoint = step; }
  // Runs f(), records its time as `what`, and returns its result.
  template <class F>
  auto Timed(double PauseTimes::*what, F&& f) {
    const Stopwatch watch(*this, what);
    return f();
  }
  // Writes what is buffered, so that TensorBoard sees it.
  void Flush() { tensorboard_.Flush(); }
  // Flushes, and replaces report.html atomically. The first failure is a warning. Returns whether
  // it succeeded.
  bool WriteReport();
  // The same for the last report: no step will follow.
  bool Finish(bool interrupted);
  // The same if an error ends the run.
  void Fail(std::string error);

  const std::string& report_path() const { return report_path_; }

 private:
  class Stopwatch {
   public:
    Stopwatch(RunLog& log, double PauseTimes::*what);
    ~Stopwatch();

   private:
    RunLog& log_;
    double PauseTimes::*what_;
    TraceRecorder::Clock::time_point start_;
  };

  static constexpr size_t kSamples = 20;  // in the report

  const std::string report_path_;
  ReportInput input_;
  TraceRecorder* trace_;
  Warn warn_;
  JsonLinesWriter metrics_, samples_;
  TensorBoardWriter tensorboard_;
  RunHistory history_;
  PauseTimes pauses_;                                     // since the last line
  std::optional<TraceRecorder::Clock::time_point> line_;  // when that was written, of this process
  double between_ms_ = 0;  // of the time between lines, what neither steps nor pauses took
  int64_t between_ = 0;    // how many times that were
  bool report_failed_ = false;
};

}  // namespace lockstep::models
