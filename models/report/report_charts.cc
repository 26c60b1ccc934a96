#include "models/report/report_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/report/format.h"

namespace lockstep::models {

std::vector<PlotPoint> PointsOf(const Curve& curve) {
  std::vector<PlotPoint> points;
  for (const Curve::Bucket& b : curve.buckets()) {
    points.push_back({b.middle(), b.mean(), b.min, b.max});
  }
  return points;
}

std::vector<PlotPoint> PointsOf(const std::vector<RunHistory::Point>& values) {
  // Evaluations are usually few; if not, a Curve thins them.
  Curve thin;
  for (const RunHistory::Point& p : values) {
    if (p.step > 0) thin.Add(p.step, p.value);
  }
  std::vector<PlotPoint> points = PointsOf(thin);
  if (!values.empty() && values[0].step == 0) points.insert(points.begin(), {0, values[0].value});
  return points;
}

std::vector<PlotPoint> Smoothed(const std::vector<PlotPoint>& points) {
  const auto n = static_cast<int64_t>(points.size()), reach = n / 60;
  std::vector<PlotPoint> smooth = points;
  for (int64_t i = 0; i < n; ++i) {
    // Never farther to the right than to the left, which would distort the steep beginning.
    const int64_t left = std::min(i, reach), right = std::min(left, n - 1 - i);
    double sum = 0;
    for (int64_t k = i - left; k <= i + right; ++k) sum += points[static_cast<size_t>(k)].y;
    smooth[static_cast<size_t>(i)].y = sum / static_cast<double>(left + right + 1);
  }
  return smooth;
}

std::string Figure(const std::string& title, const std::string& note,
                   const std::vector<PlotLine>& lines, PlotOptions options, bool wide) {
  options.title = title + ", " + note;
  std::string legend;
  if (std::ranges::count(lines, false, &PlotLine::faint) > 1) {
    for (const PlotLine& line : lines) {
      if (line.faint || line.points.empty()) continue;
      legend += fmt::format("<span><b style=\"background:var({})\"></b>{}</span>", line.color,
                            EscapeHtml(line.name));
    }
    legend = "<div class=\"legend\">" + legend + "</div>";
  }
  return fmt::format(
      "<figure class=\"card{}\"><figcaption><h3>{}</h3><span class=\"note\">{}</span>{}"
      "</figcaption><div class=\"scroll\">{}</div></figure>\n",
      wide ? " wide" : "", EscapeHtml(title), EscapeHtml(note), legend, SvgPlot(lines, options));
}

namespace {

constexpr size_t kAreas = 120;  // points of a stacked area

// A thin line of each step, and a smoothed one.
std::vector<PlotLine> RawAndSmooth(const std::string& name, const std::string& color,
                                   const Curve& curve) {
  const std::vector<PlotPoint> points = PointsOf(curve);
  const bool shared = !curve.empty() && curve.buckets()[0].count > 1;
  return {{.name = name + ", each step",
           .color = color,
           .points = points,
           .band = shared,
           .faint = true},
          {.name = name + ", smoothed", .color = color, .points = Smoothed(points)}};
}

// At most `most` points, each the mean of neighbours.
std::vector<PlotPoint> Thinned(const std::vector<PlotPoint>& points, size_t most) {
  const size_t group = (points.size() + most - 1) / std::max<size_t>(most, 1);
  std::vector<PlotPoint> thin;
  for (size_t i = 0; i < points.size(); i += group) {
    const size_t end = std::min(points.size(), i + group);
    PlotPoint mean;
    for (size_t k = i; k < end; ++k) {
      mean.x += points[k].x / static_cast<double>(end - i);
      mean.y += points[k].y / static_cast<double>(end - i);
    }
    thin.push_back(mean);
  }
  return thin;
}

// Whether a linear axis would show little but the first steps.
bool SpreadsWide(const std::vector<PlotPoint>& points, double factor) {
  double low = INFINITY, high = 0;
  for (const PlotPoint& p : points) {
    if (p.y <= 0) continue;
    low = std::min(low, p.y);
    high = std::max(high, p.y);
  }
  return high > factor * low;
}

std::string LossFigure(const RunHistory& h, const ReportInput& in, double last) {
  std::vector<PlotLine> lines = RawAndSmooth("training", "--train", h.loss);
  lines.push_back(
      {.name = "validation", .color = "--val", .points = PointsOf(h.val_loss), .dots = true});
  lines.push_back({.name = "validation of averaged weights",
                   .color = "--norm",
                   .points = PointsOf(h.val_loss_ema),
                   .dots = true});
  PlotOptions options{.title = {}, .width = 1180, .height = 340, .last_x = last, .rules = {}};
  options.log_y = SpreadsWide(lines[1].points, 2);
  const bool pairs = !h.reward_chosen.empty();
  if (pairs) {
    if (in.config.dpo.loss == "sigmoid") {
      options.rules.push_back({std::numbers::ln2, "no preference"});
    }
  } else if (in.plan.vocab_size > 1) {
    options.rules.push_back({std::log(static_cast<double>(in.plan.vocab_size)),
                             fmt::format("guessing among {} tokens", in.plan.vocab_size)});
  }
  return Figure(
      "Loss",
      fmt::format("{}{}; lower is better", pairs ? "per pair of answers" : "nats per token",
                  options.log_y ? ", log scale" : ""),
      lines, options, /*wide=*/true);
}

std::string SourcesFigure(const RunHistory& h, double last) {
  constexpr const char* kColors[] = {"--train", "--val",    "--backward", "--exposed",
                                     "--data",  "--update", "--sample",   "--checkpoint"};
  std::vector<PlotLine> lines;
  for (const auto& [name, curve] : h.val_sources) {
    lines.push_back({.name = name,
                     .color = kColors[lines.size() % std::size(kColors)],
                     .points = PointsOf(curve),
                     .dots = true});
  }
  return Figure("Validation loss of sources", "of each apart; lower is better", lines,
                {.title = {}, .last_x = last, .rules = {}});
}

// A token's experts are chosen anew in each step, so the lines are those of what each step had.
std::string ExpertFigure(const RunHistory& h, double last) {
  std::vector<PlotLine> lines = RawAndSmooth("busiest expert", "--train", h.expert_most);
  for (PlotLine& line : RawAndSmooth("least busy expert", "--val", h.expert_least)) {
    lines.push_back(std::move(line));
  }
  PlotOptions options{.title = {}, .last_x = last, .from_zero = true, .rules = {}};
  options.rules.push_back({1, "an even load"});
  return Figure("Load of experts", "over the mean of their layer, in the most uneven layer", lines,
                options);
}

std::string PreferenceFigures(const RunHistory& h, double last) {
  std::vector<PlotLine> rewards = RawAndSmooth("chosen answers", "--train", h.reward_chosen);
  for (PlotLine& line : RawAndSmooth("rejected answers", "--val", h.reward_rejected)) {
    rewards.push_back(std::move(line));
  }
  PlotOptions zero{.title = {}, .last_x = last, .rules = {{0, "the reference"}}};
  PlotOptions half{.title = {}, .last_x = last, .from_zero = true, .rules = {{0.5, "guessing"}}};
  return Figure("Rewards", "beta times the log-ratio of the model and its reference", rewards,
                zero) +
         Figure("Preferences learnt", "share of pairs whose chosen answer has the larger reward",
                RawAndSmooth("accuracy", "--train", h.reward_accuracy), half);
}

std::string StepTimeFigure(const RunHistory& h, double last) {
  std::vector<PlotLine> lines = {
      {.name = "data", .color = "--data", .points = Thinned(PointsOf(h.data_ms), kAreas)},
      {.name = "forward", .color = "--forward", .points = Thinned(PointsOf(h.forward_ms), kAreas)},
      {.name = "backward",
       .color = "--backward",
       .points = Thinned(PointsOf(h.backward_ms), kAreas)},
      {.name = "waiting for gradients",
       .color = "--exposed",
       .points = Thinned(PointsOf(h.exposed_ms), kAreas)},
      {.name = "update", .color = "--update", .points = Thinned(PointsOf(h.update_ms), kAreas)}};
  if (h.exposed_ms.sum() == 0) lines.erase(lines.begin() + 3);  // a single rank
  return Figure("Time of a step", "milliseconds", lines,
                {.title = {},
                 .height = 300,
                 .last_x = last,
                 .format = ValueFormat::kMs,
                 .from_zero = true,
                 .stacked = true,
                 .rules = {}});
}

std::string TimeTable(const RunHistory& h) {
  struct Row {
    const char *name, *color;
    double ms;
    bool step;
  };
  const Row rows[] = {{"data", "--data", h.data_ms.sum(), true},
                      {"forward", "--forward", h.forward_ms.sum(), true},
                      {"backward", "--backward", h.backward_ms.sum(), true},
                      {"waiting for gradients", "--exposed", h.exposed_ms.sum(), true},
                      {"update", "--update", h.update_ms.sum(), true},
                      {"evaluation", "--eval", h.pauses.eval_ms, false},
                      {"samples", "--sample", h.pauses.sample_ms, false},
                      {"checkpoints", "--checkpoint", h.pauses.checkpoint_ms, false},
                      {"report", "--report", h.pauses.report_ms, false}};
  double all = 0;
  for (const Row& row : rows) all += row.ms;
  if (all == 0) return "";
  const double steps = static_cast<double>(h.data_ms.count());
  std::string bar, table;
  for (const Row& row : rows) {
    if (row.ms <= 0) continue;
    const double percent = 100 * row.ms / all;
    bar += fmt::format(
        "<span style=\"flex:{:.3f} 0 0;background:var({})\" title=\"{} {:.1f}%\">"
        "</span>",
        percent, row.color, row.name, percent);
    table += fmt::format(
        "<tr><td><b style=\"background:var({})\"></b>{}</td><td>{}</td><td>{}</td><td>{:.1f}%</td>"
        "</tr>",
        row.color, row.name,
        row.step ? FormatValue(row.ms / steps, ValueFormat::kMs) : std::string(),
        row.ms < 1e4 ? FormatValue(row.ms, ValueFormat::kMs) : FormatDuration(row.ms * 1e-3),
        percent);
  }
  return fmt::format(
      "<figure class=\"card\"><figcaption><h3>Where the time went</h3><span class=\"note\">the "
      "whole run, {}</span></figcaption><div class=\"split\">{}</div><table><tr><th></th><th>per "
      "step</th><th>total</th><th>share</th></tr>{}</table></figure>\n",
      FormatDuration(all * 1e-3), bar, table);
}

// What forward, backward and update did, the longest first.
std::string KernelTable(const RunHistory& h) {
  constexpr size_t kRows = 12;
  std::vector<std::pair<double, std::string>> rows;
  double all = 0, rest = 0;
  for (const auto& [name, ms] : h.kernel_ms) {
    rows.emplace_back(ms, name);
    all += ms;
  }
  if (all == 0) return "";
  std::ranges::sort(rows, std::greater());
  for (size_t i = kRows; i < rows.size(); ++i) rest += rows[i].first;
  if (rest > 0) {
    rows.resize(kRows);
    rows.emplace_back(rest, "all others");
  }
  std::string table;
  for (const auto& [ms, name] : rows) {
    table += fmt::format("<tr><td>{}</td><td>{}</td><td>{:.1f}%</td></tr>", name,
                         ms < 1e4 ? FormatValue(ms, ValueFormat::kMs) : FormatDuration(ms * 1e-3),
                         100 * ms / all);
  }
  return fmt::format(
      "<figure class=\"card\"><figcaption><h3>Kernels</h3><span class=\"note\">of forward, "
      "backward and update, and what waits between "
      "them</span></figcaption><table><tr><th></th><th>total</th><th>share</th>"
      "</tr>{}</table></figure>\n",
      table);
}

}  // namespace

std::string ReportCharts(const RunHistory& h, const ReportInput& in) {
  const auto last = static_cast<double>(std::max<int64_t>(h.last_step(), 1));
  std::string s = "<div class=\"charts\">\n" + LossFigure(h, in, last);
  const std::vector<PlotLine> norms = RawAndSmooth("gradient norm", "--norm", h.grad_norm);
  const bool log_norm = SpreadsWide(norms[1].points, 5);
  PlotOptions norm{.title = {}, .last_x = last, .log_y = log_norm, .rules = {}};
  if (h.clip() > 0) norm.rules.push_back({h.clip(), fmt::format("clipped at {:g}", h.clip())});
  s += Figure("Gradient norm", log_norm ? "before clipping, log scale" : "before clipping", norms,
              norm);
  if (!h.loss_scale.empty()) {
    s += Figure("Loss scale", fmt::format("log scale; {} updates skipped", h.skipped_steps()),
                {{.name = "loss scale", .color = "--norm", .points = PointsOf(h.loss_scale)}},
                {.title = {}, .last_x = last, .log_y = true, .rules = {}});
  }
  if (!h.val_sources.empty()) s += SourcesFigure(h, last);
  if (!h.reward_chosen.empty()) s += PreferenceFigures(h, last);
  if (!h.expert_most.empty()) s += ExpertFigure(h, last);
  for (const auto& [name, curve] : h.tasks) {
    s += Figure(name, "of a task",
                {{.name = name, .color = "--val", .points = PointsOf(curve), .dots = true}},
                {.title = {}, .last_x = last, .rules = {}});
  }
  s += Figure("Learning rate", "per step",
              {{.name = "learning rate", .color = "--lr", .points = PointsOf(h.lr)}},
              {.title = {},
               .last_x = last,
               .format = ValueFormat::kScientific,
               .from_zero = true,
               .rules = {}});
  s += Figure(
      "Throughput", "tokens per second in steps",
      RawAndSmooth("tokens/s", "--speed", h.tokens_per_second),
      {.title = {}, .last_x = last, .format = ValueFormat::kCount, .from_zero = true, .rules = {}});
  PlotOptions memory{
      .title = {}, .last_x = last, .format = ValueFormat::kBytes, .from_zero = true, .rules = {}};
  if (in.plan.planned_memory > 0) {
    memory.rules.push_back({static_cast<double>(in.plan.planned_memory), "planned"});
  }
  if (!h.memory.empty()) {
    s += Figure("Memory", "of tensors, peak of each step",
                {{.name = "peak", .color = "--memory", .points = PointsOf(h.memory)}}, memory);
  }
  if (!h.data_ms.empty()) s += StepTimeFigure(h, last);
  return s + TimeTable(h) + LedgerFigures(MakeLedger(h, in.ledger)) + KernelTable(h) + "</div>\n";
}

}  // namespace lockstep::models
