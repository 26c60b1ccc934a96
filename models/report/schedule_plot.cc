#include "models/report/schedule_plot.h"

#include <fmt/format.h>

#include <algorithm>

#include "dist/pipeline/schedule_check.h"

namespace lockstep::models {
namespace {

constexpr double kWidth = 1160, kLeft = 56, kRow = 26, kGap = 4, kTop = 4;
constexpr int kMostRanks = 32;
constexpr size_t kMostActions = 4000;

const char* ColorOf(dist::PipelineOp op) {
  switch (op) {
    case dist::PipelineOp::kForward:
      return "--forward";
    case dist::PipelineOp::kWeightGrad:
      return "--update";
    default:
      return "--backward";
  }
}

const char* TitleOf(dist::PipelineOp op) {
  switch (op) {
    case dist::PipelineOp::kForward:
      return "forward";
    case dist::PipelineOp::kInputGrad:
      return "input gradient";
    case dist::PipelineOp::kWeightGrad:
      return "weight gradient";
    default:
      return "backward";
  }
}

int ChunksOf(const dist::PipelineSchedule& schedule) {
  return schedule.stages() / schedule.ranks();
}

std::string Row(const dist::PipelineSchedule& schedule, int rank,
                const std::vector<dist::SimulatedAction>& actions, double scale) {
  const double y = kTop + rank * (kRow + kGap);
  const std::vector<int> stages = schedule.StagesOf(rank);
  std::string s = fmt::format("<text x=\"0\" y=\"{:.1f}\" fill=\"var(--soft)\">rank {}</text>",
                              y + kRow / 2 + 4, rank);
  for (const auto& [action, begin, end] : actions) {
    const double x = kLeft + begin * scale, width = (end - begin) * scale;
    const bool later = action.stage != stages.front();
    s += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:g}\" rx=\"2\" "
        "fill=\"var({})\" stroke=\"var(--card)\"{}><title>{} of micro-batch {} in "
        "stage {}</title></rect>",
        x, y, width, kRow, ColorOf(action.op), later ? " opacity=\"0.6\"" : "", TitleOf(action.op),
        action.micro, action.stage);
    if (width >= 12) {
      s += fmt::format(
          "<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" "
          "fill=\"var(--card)\" pointer-events=\"none\">{}</text>",
          x + width / 2, y + kRow / 2 + 4, action.micro);
    }
  }
  return s;
}

std::string Key() {
  std::string s;
  double x = kLeft;
  for (const auto& [op, width] :
       {std::pair(dist::PipelineOp::kForward, 80.0), std::pair(dist::PipelineOp::kBackward, 180.0),
        std::pair(dist::PipelineOp::kWeightGrad, 0.0)}) {
    s += fmt::format(
        "<rect x=\"{:g}\" y=\"0\" width=\"10\" height=\"10\" rx=\"2\" "
        "fill=\"var({})\"/><text x=\"{:g}\" y=\"10\" fill=\"var(--soft)\">{}</text>",
        x, ColorOf(op), x + 15,
        op == dist::PipelineOp::kBackward ? "backward, or input gradient" : TitleOf(op));
    x += width;
  }
  return s;
}

}  // namespace

std::string DescribeSchedule(const dist::PipelineSchedule& schedule) {
  const double chunk = 1.0 / ChunksOf(schedule);
  const auto simulated = dist::Simulate(schedule, {chunk, chunk, chunk});
  const auto count = [](int n, const char* what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
  };
  return fmt::format("{}, {}, {} per rank: ranks idle for {:.0f}% of a step, at best",
                     count(schedule.ranks(), "rank"),
                     schedule.micro_batches == 1
                         ? std::string("1 micro-batch")
                         : fmt::format("{} micro-batches", schedule.micro_batches),
                     count(ChunksOf(schedule), "stage"), 100 * simulated.IdleShare());
}

std::string SvgSchedule(const dist::PipelineSchedule& schedule) {
  const double chunk = 1.0 / ChunksOf(schedule);
  const auto simulated = dist::Simulate(schedule, {chunk, chunk, chunk});
  const double scale = (kWidth - kLeft) / simulated.makespan;
  std::string rows;
  int drawn = 0;
  size_t actions = 0;
  while (drawn < std::min(schedule.ranks(), kMostRanks)) {
    const auto& of_rank = simulated.actions[static_cast<size_t>(drawn)];
    actions += of_rank.size();
    if (drawn > 0 && actions > kMostActions) break;
    rows += Row(schedule, drawn++, of_rank, scale);
  }
  const double end = kTop + drawn * (kRow + kGap) + 10;
  const bool all = drawn == schedule.ranks();
  std::string s = fmt::format(
      "<svg viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-label=\"The pipeline's schedule\" "
      "font-size=\"11\">{}<g transform=\"translate(0 {:g})\">{}</g>",
      kWidth, end + (all ? 14 : 32), rows, end, Key());
  if (!all) {
    s += fmt::format("<text x=\"{:g}\" y=\"{:g}\" fill=\"var(--soft)\">and {} more ranks</text>",
                     kLeft, end + 28, schedule.ranks() - drawn);
  }
  return s + "</svg>";
}

}  // namespace lockstep::models
