#include "models/report/run_log.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.h"
#include "core/io/file.h"
#include "core/system/unix_time.h"

namespace lockstep::models {
namespace {

const char* Name(double PauseTimes::*what) {
  return what == &PauseTimes::eval_ms         ? "eval"
         : what == &PauseTimes::sample_ms     ? "sample"
         : what == &PauseTimes::checkpoint_ms ? "checkpoint"
                                              : "report";
}

// The first steps of a run that began with another one's checkpoint are in that one's folder.
JsonLinesWriter::Lines LinesOf(const RunConfig& config) {
  const std::string& resume = config.checkpoint.resume;
  const bool elsewhere = resume != "auto" && resume != "none";
  return elsewhere ? JsonLinesWriter::Lines::kEveryFromFirst : JsonLinesWriter::Lines::kEvery;
}

void Add(PauseTimes& to, const PauseTimes& more) {
  to.eval_ms += more.eval_ms;
  to.sample_ms += more.sample_ms;
  to.checkpoint_ms += more.checkpoint_ms;
  to.report_ms += more.report_ms;
}

}  // namespace

RunLog::Stopwatch::Stopwatch(RunLog& log, double PauseTimes::*what)
    : log_(log), what_(what), start_(TraceRecorder::Clock::now()) {}

RunLog::Stopwatch::~Stopwatch() {
  const auto end = TraceRecorder::Clock::now();
  log_.pauses_.*what_ += std::chrono::duration<double, std::milli>(end - start_).count();
  if (log_.trace_ != nullptr) log_.trace_->Record(Name(what_), "pause", start_, end);
}

RunLog::RunLog(std::string folder, ReportInput input, int64_t first_step, TraceRecorder* trace,
               Warn warn)
    : report_path_(JoinPath(folder, "report.html")),
      input_(std::move(input)),
      trace_(trace),
      warn_(std::move(warn)),
      metrics_(JoinPath(folder, "metrics.jsonl"), "metrics", first_step, warn_,
               LinesOf(input_.config)),
      samples_(JoinPath(folder, "samples.jsonl"), "samples", first_step, warn_),
      tensorboard_(JoinPath(folder, "tensorboard"), first_step, warn_),
      history_(input_.config.optim.clip) {
  history_.AddFile(JoinPath(folder, "metrics.jsonl"));
  input_.samples = ReadSamples(JoinPath(folder, "samples.jsonl"), kSamples);
}

void RunLog::Step(StepMetrics metrics, bool last) {
  metrics.unix_time = UnixTime();
  metrics.pauses = std::exchange(pauses_, {});
  const auto now = TraceRecorder::Clock::now();
  if (line_ && metrics.step > 0) {
    const double ms = std::chrono::duration<double, std::milli>(now - *line_).count();
    between_ms_ += ms - metrics.ms - metrics.pauses.total();
    ++between_;
    // Of a GPU's steps, a line may begin before the one before it is written.
    input_.ledger.between_ms = std::max(0.0, between_ms_ / static_cast<double>(between_));
  }
  line_ = now;
  history_.Add(metrics);
  std::string line = ToJson(metrics);
  if (last) {
    line.pop_back();  // the brace
    line += StrCat(",\"ledger\":", ToJson(MakeLedger(history_, input_.ledger)), "}");
  }
  metrics_.Write(line);
  tensorboard_.Write(metrics);
  input_.plan.utilization.Correct(metrics.tokens_per_second);
}

void RunLog::Sample(TextSample sample) {
  samples_.Write(ToJson(sample));
  tensorboard_.Write(sample, UnixTime());
  input_.samples.push_back(std::move(sample));
  if (input_.samples.size() > kSamples) input_.samples.erase(input_.samples.begin());
}

void RunLog::Replan(ReportInput input) {
  input.samples = std::move(input_.samples);
  input.ledger.between_ms = input_.ledger.between_ms;
  input_ = std::move(input);
}

bool RunLog::WriteReport() {
  tensorboard_.Flush();
  const Stopwatch watch(*this, &PauseTimes::report_ms);
  try {
    input_.unix_time = UnixTime();
    RunHistory history = history_;
    Add(history.pauses, pauses_);
    WriteFileAtomically(report_path_, RenderReport(history, input_));
    return true;
  } catch (const std::exception& e) {
    const bool last = input_.plan.ended();
    if (!std::exchange(report_failed_, true) || last) {
      warn_(StrCat("no report: ", e.what(), last ? "" : "; training continues"));
    }
    return false;
  }
}

bool RunLog::Finish(bool interrupted) {
  input_.plan.interrupted = interrupted;
  input_.plan.finished = !interrupted;
  return WriteReport();
}

void RunLog::Fail(std::string error) {
  input_.plan.failure = std::move(error);
  WriteReport();
}

}  // namespace lockstep::models
