// A timeline of a few steps as Chrome's trace JSON, for chrome://tracing and ui.perfetto.dev.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/autograd/node.h"
#include "core/module.h"
#include "models/options/option_step_range.h"

namespace lockstep::models {

// Collects spans while the step is in the range, at most `max_events` of them; the file says how
// many were dropped. Thread-safe. While it is not active, recording costs one comparison.
class TraceRecorder {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMaxEvents = 200'000;  // some 25 MB of JSON

  // `path` is the file that Finish writes.
  TraceRecorder(std::string path, StepRange range, size_t max_events = kMaxEvents);

  // What is recorded from now on belongs to this step.
  void BeginStep(int64_t step) {
    step_ = step;
    active_ = step >= range_.first && step <= range_.last;
  }
  bool active() const { return active_; }
  // Whether a step after the range has begun: time for Finish.
  bool complete() const { return step_ > range_.last; }
  // Names the calling thread in the trace.
  void NameThread(std::string name);
  // Records a span that has ended. Spans of a thread nest. `track`, a literal, is what it is listed
  // under instead of the calling thread.
  void Record(std::string_view name, const char* category, Clock::time_point begin,
              Clock::time_point end, const char* track = nullptr);
  // Stops recording and writes the file, unless there is nothing to write or it was tried before;
  // returns whether it did. IoError.
  bool Finish();

  const std::string& path() const { return path_; }
  std::string ToJson() const;

 private:
  struct Event {
    std::string name;
    const char* category;
    int64_t begin_ns, duration_ns, step;
    int thread;
  };
  // With mutex_ held: numbers of the calling thread and of a track.
  int ThisThread();
  int TrackNamed(const char* track);

  const std::string path_;
  const StepRange range_;
  const size_t max_events_;
  const Clock::time_point origin_ = Clock::now();
  bool active_ = false, finished_ = false;
  int64_t step_ = 0;
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  int64_t dropped_ = 0;
  std::map<std::thread::id, int> threads_;
  std::map<std::string, int> tracks_;
  std::map<int, std::string> thread_names_;  // and of tracks
};

// A span from construction to destruction. `trace` may be null; `name` must outlive the span.
class TraceSpan {
 public:
  TraceSpan(TraceRecorder* trace, std::string_view name, const char* category)
      : trace_(trace != nullptr && trace->active() ? trace : nullptr),
        name_(name),
        category_(category) {
    if (trace_ != nullptr) begin_ = TraceRecorder::Clock::now();
  }
  ~TraceSpan() {
    if (trace_ != nullptr) trace_->Record(name_, category_, begin_, TraceRecorder::Clock::now());
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceRecorder* trace_;
  std::string_view name_;
  const char* category_;
  TraceRecorder::Clock::time_point begin_;
};

// Records a span per forward call of the model and each module in it, named by its path. Both must
// live as long as forwards run; the hooks cannot be removed.
void TraceForward(Module& model, TraceRecorder& trace);

// An observer that gives a backward a span per node.
class TraceBackward : public BackwardObserver {
 public:
  explicit TraceBackward(TraceRecorder& trace) : trace_(trace) {}
  bool awaits_leaves() const override { return false; }
  void OnBegin(const BackwardPlan& plan) override;

 private:
  TraceRecorder& trace_;
};

}  // namespace lockstep::models
