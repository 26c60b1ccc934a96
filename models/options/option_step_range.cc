#include "models/options/option_step_range.h"

#include <charconv>

#include "core/error.h"

namespace lockstep::models {
namespace {

std::optional<int64_t> ParseStep(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
  return value;
}

}  // namespace

std::optional<StepRange> ParseStepRange(std::string_view text) {
  if (text.empty()) return {};
  const size_t colon = text.find(':');
  const auto first = ParseStep(text.substr(0, colon));
  const auto last =
      colon == std::string_view::npos ? std::nullopt : ParseStep(text.substr(colon + 1));
  if (!first || !last) {
    throw InputError(first && colon == std::string_view::npos
                         ? StrCat("must be first:last, as in ", *first, ":", *first)
                         : "must be first:last, two steps, as in 100:110");
  }
  if (*first < 1) throw InputError("steps are counted from 1");
  if (*last < *first)
    throw InputError(StrCat("the last step is before the first: write ", *last < 1 ? *first : *last,
                            ":", *first));
  if (*last - *first >= kMaxTraceSteps) {
    throw InputError(StrCat("at most ", kMaxTraceSteps, " steps can be traced: write ", *first, ":",
                            *first + kMaxTraceSteps - 1));
  }
  return StepRange{*first, *last};
}

std::optional<TracedOps> ParseTracedOps(std::string_view text) {
  if (text.empty()) return {};
  const size_t colon = text.find(':');
  const auto step = ParseStep(text.substr(0, colon));
  const bool names = colon != std::string_view::npos;
  if (!step || *step < 1 || (names && colon + 1 == text.size())) {
    throw InputError(
        "must be a step, counted from 1, as in 100, or a step and an event, as in "
        "100:17");
  }
  return TracedOps{*step, names ? std::string(text.substr(colon + 1)) : ""};
}

}  // namespace lockstep::models
