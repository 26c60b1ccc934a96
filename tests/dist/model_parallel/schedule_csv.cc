#include "tests/dist/model_parallel/schedule_csv.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/error.h"

namespace lockstep::dist {
namespace {

constexpr std::array<std::string_view, 8> kOpNames = {"F",      "B",      "I",      "W",
                                                      "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

int NumberAt(std::string_view text, size_t* at) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data() + *at, text.data() + text.size(), value);
  if (error != std::errc()) return -1;
  *at = static_cast<size_t>(end - text.data());
  return value;
}

PipelineAction ParseAction(std::string_view cell, int line) {
  size_t at = 0;
  const int stage = NumberAt(cell, &at);
  const size_t digits = cell.find_last_not_of("0123456789") + 1;
  size_t micro_at = digits;
  const int micro = digits >= at ? NumberAt(cell, &micro_at) : -1;
  const auto op = std::find(kOpNames.begin(), kOpNames.end(),
                            digits >= at ? cell.substr(at, digits - at) : std::string_view());
  LS_CHECK(stage >= 0 && micro >= 0 && op != kOpNames.end(), "line ", line,
           " of the pipeline schedule: '", cell,
           "' is not an action: write stage, operation and micro-batch, as in 2F0, 2B0, 2I0, 2W0, "
           "2SEND_F0, 2RECV_F0, 2SEND_B0 or 2RECV_B0");
  return {stage, static_cast<PipelineOp>(op - kOpNames.begin()), micro};
}

}  // namespace

std::string ToCsv(const PipelineSchedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.actions) {
    for (size_t i = 0; i < actions.size(); ++i) {
      text += (i > 0 ? "," : "") + ToString(actions[i]);
    }
    text += "\n";
  }
  return text;
}

PipelineSchedule ScheduleFromCsv(std::string_view text) {
  PipelineSchedule out;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const int rank = out.ranks();
    auto& actions = out.actions.emplace_back();
    while (!line.empty()) {
      std::string_view cell = line.substr(0, line.find(','));
      line.remove_prefix(std::min(line.size(), cell.size() + 1));
      const auto blank = [](char c) { return c == ' ' || c == '\r' || c == '\t'; };
      while (!cell.empty() && blank(cell.front())) cell.remove_prefix(1);
      while (!cell.empty() && blank(cell.back())) cell.remove_suffix(1);
      if (cell.empty()) continue;
      const PipelineAction a = ParseAction(cell, rank + 1);
      constexpr int kMost = 1 << 20;
      LS_CHECK(a.stage < kMost && a.micro < kMost, "line ", rank + 1,
               " of the pipeline schedule: ", cell, " has a stage or micro-batch above ", kMost);
      if (a.stage >= out.stages()) out.rank_of.resize(static_cast<size_t>(a.stage) + 1, -1);
      int& owner = out.rank_of[a.stage];
      LS_CHECK(owner < 0 || owner == rank, "stage ", a.stage,
               " of the pipeline schedule is on lines ", owner + 1, " and ", rank + 1,
               ": a stage has one rank");
      owner = rank;
      out.micro_batches = std::max(out.micro_batches, a.micro + 1);
      actions.push_back(a);
    }
  }
  for (int s = 0; s < out.stages(); ++s) {
    LS_CHECK(out.rank_of[s] >= 0, "stage ", s,
             " of the pipeline schedule is on no rank, but stage ", out.stages() - 1, " is on one");
  }
  return out;
}

}  // namespace lockstep::dist
