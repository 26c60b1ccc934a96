// Options that name a few steps of a run.
#pragma once

#include <cstdint>
#include <optional>
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

}  // namespace lockstep::models
