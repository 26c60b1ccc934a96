#include "models/evaluate/task_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/io/json.h"

namespace lockstep::models {
namespace {

// Four digits after the point; of large figures as many as matter.
std::string Digits(double value) {
  return std::abs(value) < 1e5 ? fmt::format("{:.4f}", value) : fmt::format("{:.4g}", value);
}

}  // namespace

std::string Table(std::span<const TaskResult> results) {
  std::vector<std::array<std::string, 7>> lines = {
      {"task", "n-shot", "rows", "filter", "metric", "value", "stderr"}};
  for (const TaskResult& result : results) {
    for (const Figure& figure : result.figures) {
      lines.push_back({result.task, StrCat(result.shots), StrCat(result.rows), figure.filter,
                       figure.metric, Digits(figure.value),
                       figure.error ? Digits(*figure.error) : ""});
    }
  }
  std::array<size_t, 7> width{};
  for (const auto& line : lines) {
    for (size_t i = 0; i < width.size(); ++i) width[i] = std::max(width[i], line[i].size());
  }
  const auto is_number = [](size_t i) { return i == 1 || i == 2 || i > 4; };
  std::string table, rule;
  for (size_t i = 0; i < width.size(); ++i) {
    rule += StrCat("|", std::string(width[i] + 1, '-'), is_number(i) ? ":" : "-");
  }
  for (const auto& line : lines) {
    for (size_t i = 0; i < width.size(); ++i) {
      table += is_number(i) ? fmt::format("| {:>{}} ", line[i], width[i])
                            : fmt::format("| {:<{}} ", line[i], width[i]);
    }
    table += "|\n";
    if (&line == &lines[0]) table += rule + "|\n";
  }
  return table;
}

std::string ToJson(std::span<const TaskResult> results) {
  OrderedJson json;
  for (const TaskResult& result : results) {
    for (const Figure& figure : result.figures) {
      OrderedJson& of_task = json["results"][result.task];
      const auto put = [&](const std::string& metric, double value) {
        of_task[StrCat(metric, ",", figure.filter)] =
            std::isfinite(value) ? OrderedJson(value) : nullptr;
      };
      put(figure.metric, figure.value);
      if (figure.error) put(figure.metric + "_stderr", *figure.error);
    }
    json["n-shot"][result.task] = result.shots;
    json["n-samples"][result.task] = result.rows;
  }
  return json.dump(2);
}

}  // namespace lockstep::models
