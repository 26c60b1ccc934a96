// What a run records for people in its folder: metrics.jsonl, samples.jsonl, report.html,
// tensorboard/.
#pragma once

#include <functional>
#include <string>

#include "models/report/json_lines.h"
#include "models/report/metrics.h"
#include "models/report/report.h"
#include "models/report/run_history.h"
#include "models/report/tensorboard.h"
#include "models/report/trace.h"

namespace lockstep::models {

// Records go on where those of an earlier run in the folder end. Once constructed, nothing here
// throws for a disk that refuses: `warn` hears of it once per kind of record, and training
// continues.
class RunLog {
 public:
  using Warn = std::function<void(const std::string&)>;

  // `input`: of the report, without samples and time. `first_step`: the first that this run makes;
  // what is recorded of it and later steps is dropped. `trace` may be null. IoError.
  RunLog(std::string folder, ReportInput input, int64_t first_step, TraceRecorder* trace,
         Warn warn);

  // A line of metrics; what was spent by Timed since the last line goes into it.
  void Step(StepMetrics metrics);
  void Sample(TextSample sample);
  // RunPlan::best_checkpoint, for the report.
  void SetBestCheckpoint(int64_t step) { input_.plan.best_checkpoint = step; }
  // Runs f() and books its time as `what`; returns its result.
  template <class F>
  auto Timed(double PauseTimes::*what, F&& f) {
    const Stopwatch watch(*this, what);
    return f();
  }
  // Hands what is buffered to the system: TensorBoard sees it.
  void Flush() { tensorboard_.Flush(); }
  // Flush, and replaces report.html atomically.
  void WriteReport();
  // The last report: no step will follow.
  void Finish(bool interrupted);

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
  MetricsWriter metrics_;
  JsonLinesWriter samples_;
  TensorBoardWriter tensorboard_;
  RunHistory history_;
  PauseTimes pauses_;  // since the last line
  bool report_failed_ = false;
};

}  // namespace lockstep::models
