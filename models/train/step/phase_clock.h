// The stopwatch of a training step.
#pragma once

#include <chrono>

#include "models/report/metrics.h"
#include "models/report/trace.h"

namespace lockstep::models {

// Divides the time since its construction into phases without gaps: leaving one enters another.
// Each change costs one clock reading.
class PhaseClock {
 public:
  using Phase = double StepTimes::*;

  // `trace` may be null.
  PhaseClock(Phase phase, TraceRecorder* trace) : trace_(trace), phase_(phase), since_(Now()) {}

  void Enter(Phase phase) {
    const Clock::time_point now = Now();
    times_.*phase_ += std::chrono::duration<double, std::milli>(now - since_).count();
    if (trace_ != nullptr) trace_->Record(Name(phase_), "phase", since_, now);
    phase_ = phase;
    since_ = now;
  }
  // Moves part of one phase's time to another.
  void Move(Phase from, Phase to, double ms) {
    times_.*from -= ms;
    times_.*to += ms;
  }
  // Ends the last phase.
  StepTimes Stop() {
    Enter(phase_);
    return times_;
  }

 private:
  using Clock = TraceRecorder::Clock;
  static Clock::time_point Now() { return Clock::now(); }
  static const char* Name(Phase phase) {
    return phase == &StepTimes::data_ms       ? "data"
           : phase == &StepTimes::forward_ms  ? "forward"
           : phase == &StepTimes::backward_ms ? "backward"
                                              : "update";
  }

  TraceRecorder* trace_;
  Phase phase_;
  Clock::time_point since_;
  StepTimes times_;
};

}  // namespace lockstep::models
