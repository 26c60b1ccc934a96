// Options that name a few steps of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::models {

// Steps are counted from 1, as in the lines of a run.
struct StepRange {
  int64_t first = 0, last = 0;  // inclusive
};

inline constexpr int64_t kMaxTraceSteps = 1000;

// Parses "100:110"; "" gives none. Throws InputError, also for more than kMaxTraceSteps steps; the
// message does not say where the text came from.
std::optional<StepRange> ParseStepRange(std::string_view text);

// A step whose operations are traced, and the one of its events whose tensors are kept; empty:
// none.
struct TracedOps {
  int64_t step = 0;
  std::string event;
};

// The event of TracedOps that stands for what all modules give (models/train/step/op_trace.h).
inline constexpr char kKeepModules[] = "modules";

// Parses "100" or "100:event"; "" gives none. Throws InputError as above.
std::optional<TracedOps> ParseTracedOps(std::string_view text);

}  // namespace lockstep::models
