#include "models/plan/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "dist/pipeline/schedule.h"
#include "models/gpt/gpt.h"
#include "models/memory/memory_advice.h"
#include "models/report/format.h"
#include "models/report/report_page.h"
#include "models/report/schedule_plot.h"
#include "models/report/svg_plot.h"

namespace lockstep::models {
namespace {

constexpr size_t kMostReasons = 8;

constexpr std::pair<const char*, double (*)(const StepTime&)> kParts[] = {
    {"products", [](const StepTime& t) { return t.products; }},
    {"attention", [](const StepTime& t) { return t.attention; }},
    {"other kernels", [](const StepTime& t) { return t.other; }},
    {"update", [](const StepTime& t) { return t.update; }},
    {"host", [](const StepTime& t) { return t.host; }},
    {"recomputation", [](const StepTime& t) { return t.recomputed.total(); }},
    {"messages of tp", [](const StepTime& t) { return t.tensor; }},
    {"messages of cp", [](const StepTime& t) { return t.context; }},
    {"messages of ep", [](const StepTime& t) { return t.experts; }},
    {"messages of dp", [](const StepTime& t) { return t.data; }},
    {"offload", [](const StepTime& t) { return t.offload; }},
    {"idle in the pipeline", [](const StepTime& t) { return t.idle; }},
};

std::string Seconds(double s) {
  return s >= 1 ? fmt::format("{:.2f} s", s) : fmt::format("{:.1f} ms", 1e3 * s);
}

std::string Bytes(double n) { return FormatDecimalBytes(n); }

// "products 71%, attention 12%, messages of tp 9%": what takes a fiftieth of the step or more.
std::string Shares(const StepTime& t) {
  std::string s;
  for (const auto& [name, part] : kParts) {
    const double share = part(t) / t.total;
    if (share >= 0.02) s += fmt::format("{}{} {:.0f}%", s.empty() ? "" : ", ", name, 100 * share);
  }
  return s;
}

// What a plan spends more than the best on: "12% slower, by recomputation".
std::string Slower(const StepTime& t, const StepTime& best) {
  const auto most = std::ranges::max_element(
      kParts, {}, [&](const auto& part) { return part.second(t) - part.second(best); });
  return fmt::format("{:.1f}% slower, by {}", 100 * (t.total / best.total - 1), most->first);
}

std::string Cost(const RunSetup& setup, const Cluster& cluster, double seconds, double tokens) {
  const double steps = std::ceil(tokens / static_cast<double>(setup.tokens_per_step));
  const double hours = steps * seconds / 3600 * static_cast<double>(cluster.devices);
  return fmt::format("{} tokens: {:.0f} steps, {}, {:.{}f} {} hours\n", FormatCount(tokens), steps,
                     FormatDuration(steps * seconds), hours, hours < 10 ? 2 : 0,
                     cluster.is_cpu ? "rank" : "GPU");
}

std::string Reasons(const SearchResult& found) {
  std::string s;
  for (size_t i = 0; i < std::min(found.failed.size(), kMostReasons); ++i) {
    const FailedPlans& f = found.failed[i];
    s += fmt::format("  {:>7}  {}: {}", f.plans, f.reason, f.nearest);
    if (f.lacks > 1) s += fmt::format(" lacks {}", Bytes(f.lacks));
    s += "\n";
  }
  return s.empty() ? "" : "why others fail (plans, and the nearest of them):\n" + s;
}

// The spans of a rank's two streams, one above the other.
std::string SvgSpans(const std::vector<StepSpan>& spans) {
  constexpr double kWidth = 1160, kLeft = 72, kRow = 30;
  double end = 0;
  for (const StepSpan& span : spans) end = std::max(end, span.end);
  std::string s = fmt::format(
      "<svg viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-label=\"A rank's step\" font-size=\"11\">"
      "<text x=\"0\" y=\"18\" fill=\"var(--soft)\">computes</text>"
      "<text x=\"0\" y=\"{:g}\" fill=\"var(--soft)\">messages</text>",
      kWidth, 2 * kRow + 8, kRow + 22);
  for (const StepSpan& span : spans) {
    const bool message = span.kind == StepSpan::Kind::kMessage;
    const char* const color = span.kind == StepSpan::Kind::kForward    ? "--forward"
                              : span.kind == StepSpan::Kind::kBackward ? "--backward"
                                                                       : "--update";
    const double scale = (kWidth - kLeft) / end;
    s += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:g}\" width=\"{:.2f}\" height=\"{:g}\" fill=\"var({})\" "
        "stroke=\"var(--card)\" stroke-width=\"0.3\"><title>{}</title></rect>",
        kLeft + span.begin * scale, message ? kRow + 4 : 0, (span.end - span.begin) * scale,
        kRow - 4, color, Seconds(span.end - span.begin));
  }
  return s + "</svg>";
}

// What the user asked for, with this plan.
RunConfig ConfigOf(const RunSetup& setup, const Layout& layout, double tokens) {
  RunSetup run = setup;
  Apply(layout, run);
  run.config.train.global_batch_size = run.samples_per_step();
  run.config.train.grad_accum = 0;
  RunConfig config = run.asked;
  TakePlan(run.config, &config);
  TrainOptions& train = config.train;
  if (tokens > 0) {
    train.steps = std::llround(std::ceil(tokens / static_cast<double>(setup.tokens_per_step)));
    train.epochs = train.tokens_per_parameter = 0;
  }
  return config;
}

}  // namespace

std::string ReportOf(const RunSetup& setup, const Cluster& cluster, const SearchResult& found,
                     double tokens, double seconds) {
  const RunConfig& c = setup.config;
  const GptConfig& m = setup.model;
  std::string s =
      fmt::format("{}: {} parameters, {} layers, width {}; {} x {} tokens a step, {}\n{}\n",
                  c.model.preset.empty() ? "model" : c.model.preset,
                  FormatCount(static_cast<double>(Gpt(m).NumWeights())), m.n_layer, m.n_embd,
                  setup.samples_per_step(), setup.window(), c.train.precision, Describe(cluster));
  s += fmt::format("{} plans in {:.1f} s, of which {} fit\n\n", found.tried, seconds, found.fitted);
  if (found.best.empty()) return s + "no plan fits\n\n" + Reasons(found);
  s += "          step   MFU    memory  plan\n";
  for (size_t i = 0; i < found.best.size(); ++i) {
    const FoundPlan& p = found.best[i];
    s += fmt::format("{:>2} {:>11} {:>4.0f}% {:>8}{} {}\n{:31}{}\n", i + 1, Seconds(p.time.total),
                     100 * p.mfu, Bytes(p.bytes), p.exact ? " " : "~", Describe(p.layout), "",
                     i == 0 ? Shares(p.time) : Slower(p.time, found.best[0].time));
  }
  const FoundPlan& best = found.best.front();
  s += fmt::format("\nbest: {}\n", ArgumentsOf(setup, best.layout, tokens));
  if (tokens > 0) s += Cost(setup, cluster, best.time.total, tokens);
  return s + Reasons(found);
}

void TakePlan(const RunConfig& from, RunConfig* to) {
  const TrainOptions& plan = from.train;
  TrainOptions& train = to->train;
  to->parallel = from.parallel;
  train.precision = plan.precision;
  train.batch_size = plan.batch_size;
  train.global_batch_size = plan.global_batch_size;
  train.grad_accum = plan.grad_accum;
  train.recompute = plan.recompute;
  train.offload = plan.offload;
}

std::string TomlOf(const RunSetup& setup, const Layout& layout, double tokens) {
  return ToToml(ConfigOf(setup, layout, tokens));
}

std::string ArgumentsOf(const RunSetup& setup, const Layout& layout, double tokens) {
  const RunConfig planned = ConfigOf(setup, layout, tokens);
  RunConfig given = setup.asked;
  given.train.batch_size = given.train.global_batch_size = 0;  // these are always said
  return ArgumentsOf(given, planned);
}

std::string PictureOf(const RunSetup& setup, const Cluster& cluster, const FoundPlan& plan) {
  const Layout& l = plan.layout;
  std::string picture;
  if (l.mesh.pp > 1) {
    const dist::PipelineSchedule schedule =
        dist::MakeSchedule(dist::ParsePipelineKind(l.schedule), static_cast<int>(l.mesh.pp),
                           static_cast<int>(l.grad_accum), static_cast<int>(l.chunks));
    picture = SvgSchedule(schedule) + "<p>" + DescribeSchedule(schedule) + "</p>";
  } else {
    std::vector<StepSpan> spans;
    TimeOf(PlannedModel::Of(setup), l, cluster, /*exact=*/true, &spans);
    picture = SvgSpans(spans);
    if (l.grad_accum > 3) picture += "<p>three of its micro-batches</p>";
  }
  return PageHead("A step", /*seconds=*/0) + "<p>" + EscapeHtml(Describe(l)) + "; " +
         EscapeHtml(Describe(cluster)) + ": " + Seconds(plan.time.total) + ", " +
         Shares(plan.time) + "</p>" + picture + PageEnd("By //tools:plan");
}

}  // namespace lockstep::models
