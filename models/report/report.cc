#include "models/report/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <deque>
#include <map>

#include "core/io/json.h"
#include "models/report/format.h"
#include "models/report/json_lines.h"
#include "models/report/report_charts.h"
#include "models/report/report_page.h"
#include "models/report/schedule_plot.h"
#include "models/report/svg_plot.h"

namespace lockstep::models {
namespace {

constexpr size_t kOpenSamples = 1;  // shown in full; older ones open on a click

std::string Name(Health health) {
  switch (health) {
    case Health::kGood:
      return "good";
    case Health::kWatch:
      return "watch";
    case Health::kBad:
      return "bad";
    case Health::kUnknown:
      break;
  }
  return "unknown";
}

std::string Mark(Health health) {
  const char* path = health == Health::kGood    ? "M14 24.5l6.5 6.5L33 17"
                     : health == Health::kWatch ? "M23.5 13v13M23.5 33.2v.1"
                     : health == Health::kBad   ? "M16 16l15 15M31 16L16 31"
                                                : "M14.5 24h.1M23.5 24h.1M32.5 24h.1";
  return fmt::format(
      "<svg class=\"mark\" viewBox=\"0 0 47 47\" aria-hidden=\"true\"><circle cx=\"23.5\" "
      "cy=\"23.5\" r=\"22\"/><path d=\"{}\"/></svg>",
      path);
}

std::string Progress(const RunHistory& h, const ReportInput& in) {
  const int64_t step = h.last_step(), steps = std::max(in.plan.steps, step);
  const double share = steps > 0 ? static_cast<double>(step) / static_cast<double>(steps) : 0;
  const double spent = (h.step_ms.sum() + h.pauses.total()) * 1e-3;
  std::string line = FormatDuration(spent) + " of work";
  if (!in.plan.ended() && step > 0 && steps > step) {
    const double done = static_cast<double>(std::max<int64_t>(h.step_ms.count(), 1));
    line += fmt::format("; about {} left",
                        FormatDuration(spent / done * static_cast<double>(steps - step)));
  }
  return fmt::format(
      "<div class=\"progress\"><b>Step {} of {}</b><div class=\"bar\"><span "
      "style=\"width:{:.1f}%\">"
      "</span></div>{} tokens; {}</div>",
      step, steps, 100 * share,
      FormatCount(static_cast<double>(step) * static_cast<double>(in.plan.tokens_per_step)), line);
}

std::string Head(const RunHistory& h, const ReportInput& in, const RunHealth& v) {
  const std::time_t when = static_cast<std::time_t>(in.unix_time);
  std::string s = fmt::format(
      "<header class=\"top\"><h1>{}</h1><span class=\"chip\">{}</span><span class=\"when\">as of "
      "{:%Y-%m-%d %H:%M:%S} UTC</span></header>\n",
      EscapeHtml(in.name),
      in.plan.finished      ? "finished"
      : in.plan.interrupted ? "interrupted"
      : in.plan.ended()     ? "failed"
                            : "running",
      fmt::gmtime(when));
  s += fmt::format(
      "<section class=\"card verdict {}\">{}<div class=\"say\"><h2>{}</h2><p>{}</p></div>{}"
      "</section>\n",
      Name(v.health), Mark(v.health), EscapeHtml(v.headline), EscapeHtml(v.text), Progress(h, in));
  s += "<div class=\"tiles\">";
  for (const Finding& f : v.findings) {
    s += fmt::format(
        "<div class=\"card tile\"><div class=\"label\"><i class=\"{}\"></i>{}</div><div "
        "class=\"value\">{}<small>{}</small></div><p>{}</p></div>",
        Name(f.health), EscapeHtml(f.label), EscapeHtml(f.value), EscapeHtml(f.unit),
        EscapeHtml(f.text));
  }
  return s + "</div>\n";
}

std::string SampleText(const TextSample& sample) {
  std::string_view text = sample.text;
  std::string prompt;
  if (!sample.prompt.empty()) prompt = "<mark>" + EscapeHtml(sample.prompt) + "</mark>";
  // The first newline after <pre> is not shown.
  return "<pre>\n" + prompt + EscapeHtml(text) + "</pre>";
}

std::string Samples(const std::vector<TextSample>& samples) {
  if (samples.empty()) return "";
  std::string s =
      "<section class=\"card\"><div class=\"head\"><h2>What it writes</h2><span class=\"note\">the "
      "prompt in grey, then the model's own text</span></div>";
  for (size_t i = 0; i < samples.size(); ++i) {
    const TextSample& sample = samples[samples.size() - 1 - i];
    if (i < kOpenSamples) {
      s += fmt::format("<p class=\"note\">after step {}</p>{}", sample.step, SampleText(sample));
    } else {
      s += fmt::format("<details><summary>after step {}</summary>{}</details>", sample.step,
                       SampleText(sample));
    }
  }
  return s + "</section>\n";
}

std::string Configuration(const ReportInput& in) {
  std::map<std::string, std::string> sections;
  std::vector<std::string> order;
  for (const OptionDifference& option : Compare(RunConfig(), in.config)) {
    const size_t dot = option.key.find('.');
    const bool in_section = dot != std::string::npos;
    const std::string section = in_section ? option.key.substr(0, dot) : "";
    if (!sections.contains(section)) order.push_back(section);
    sections[section] +=
        fmt::format("<tr><td class=\"key\">{}</td><td class=\"set{}\">{}</td></tr>",
                    EscapeHtml(in_section ? option.key.substr(dot + 1) : option.key),
                    option.a != option.b ? " changed" : "", EscapeHtml(option.b));
  }
  std::string s =
      "<section class=\"card\"><div class=\"head\"><h2>Configuration</h2><span "
      "class=\"note\">values "
      "that differ from the defaults are bold</span></div><div class=\"columns\">";
  for (const std::string& name : order) {
    s += fmt::format("<div><h3>{}</h3><table>{}</table></div>",
                     name.empty() ? "general" : EscapeHtml(name), sections[name]);
  }
  return s + "</div></section>\n";
}

std::string Facts(const ReportInput& in) {
  if (in.facts.empty()) return "";
  std::string s =
      "<section class=\"card\"><div class=\"head\"><h2>The run</h2></div><dl "
      "class=\"facts\">";
  for (const auto& [name, text] : in.facts) {
    s += fmt::format("<dt>{}</dt><dd>{}</dd>", EscapeHtml(name), EscapeHtml(text));
  }
  return s + "</dl></section>\n";
}

std::string PipelinePicture(const ReportInput& in) {
  if (!in.pipeline) return "";
  return fmt::format(
      "<section class=\"card\"><div class=\"head\"><h2>Pipeline</h2><span class=\"note\">{}, {}; "
      "numbers are micro-batches</span></div>{}</section>\n",
      EscapeHtml(in.config.parallel.schedule), DescribeSchedule(*in.pipeline),
      SvgSchedule(*in.pipeline));
}

}  // namespace

std::string ToJson(const TextSample& sample) {
  const OrderedJson j = {{"step", sample.step}, {"prompt", sample.prompt}, {"text", sample.text}};
  // DumpJson replaces characters that a byte-level model left incomplete.
  return j.dump();
}

std::vector<TextSample> ReadSamples(const std::string& path, size_t most) {
  std::deque<TextSample> samples;
  ForEachLine(path, [&](const std::string& line) {
    const auto j = TryParseJson(line);
    const auto step = StepOf(j);
    if (!step) return;
    const auto text = [&](const char* key) {
      return j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : std::string();
    };
    samples.push_back({*step, text("prompt"), text("text")});
    if (samples.size() > most) samples.pop_front();
  });
  return {samples.begin(), samples.end()};
}

std::string RenderReport(const RunHistory& history, const ReportInput& input) {
  const RunHealth verdict = Judge(history, input.plan);
  // While the run lasts, the page reads itself again.
  return PageHead(input.name + ": " + verdict.headline, input.plan.ended() ? 0 : 60) +
         Head(history, input, verdict) + ReportCharts(history, input) + Samples(input.samples) +
         PipelinePicture(input) + Facts(input) + Configuration(input) +
         PageEnd(
             "Made by Lockstep from metrics.jsonl, which has every step. Point at a chart for its "
             "values.");
}

}  // namespace lockstep::models
