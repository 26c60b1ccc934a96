#include "models/sweep/compared_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "core/error.h"
#include "core/io/file.h"
#include "models/checkpoint/run_folder.h"
#include "models/report/format.h"
#include "models/report/report_charts.h"
#include "models/report/report_page.h"
#include "models/report/svg_plot.h"
#include "models/store/s3_text.h"

namespace lockstep::models {
namespace {

constexpr size_t kColors = 10;  // --run0 and so on; the runs beyond are grey

bool IsRun(const std::string& folder) {
  return PathExists(JoinPath(folder, "config.toml")) &&
         PathExists(JoinPath(folder, "metrics.jsonl"));
}

std::string VersionOf(const std::string& path) {
  std::error_code error;  // it may just be replaced
  const auto time = std::filesystem::last_write_time(path, error).time_since_epoch().count();
  return StrCat(std::filesystem::file_size(path, error), " ", time);
}

ComparedRun ReadRun(const std::string& path, std::string name, std::vector<ComparedRun>& before) {
  ComparedRun run{.name = std::move(name), .finished = IsFinished(path)};
  const std::string file = JoinPath(path, "config.toml");
  try {
    run.config = RunConfigFromToml(ReadFile(file), file);
  } catch (const InputError&) {
    // Of another version: its curves can be compared all the same.
  }
  const std::string metrics = JoinPath(path, "metrics.jsonl");
  run.version = VersionOf(metrics);
  const auto known = std::ranges::find(before, run.name, &ComparedRun::name);
  if (known != before.end() && known->version == run.version) {
    run.history = std::move(known->history);
  } else {
    run.history.AddFile(metrics);
  }
  return run;
}

// A run is compared by the best of its evaluations; without any, by the training loss at its end.
struct Result {
  double loss = std::numeric_limits<double>::infinity();
  int64_t step = 0;
  bool of_validation = false;
};

Result ResultOf(const RunHistory& h) {
  Result result;
  for (const RunHistory::Point& p : h.val_loss) {
    if (p.value < result.loss) result = {p.value, p.step, true};
  }
  if (result.of_validation || h.loss.empty()) return result;
  return {h.loss.Mean(h.last_step() - h.last_step() / 20, h.last_step()), h.last_step(), false};
}

// The indices of the runs, the best first.
std::vector<size_t> Ranked(const std::vector<ComparedRun>& runs) {
  std::vector<double> losses;
  std::vector<size_t> order;
  for (const ComparedRun& run : runs) {
    order.push_back(order.size());
    losses.push_back(ResultOf(run.history).loss);
  }
  std::ranges::stable_sort(order, {}, [&](size_t i) { return losses[i]; });
  return order;
}

std::string LossText(const Result& result) {
  return std::isfinite(result.loss) ? fmt::format("{:.4f}", result.loss) : "none";
}

std::string TextOf(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.at(0).size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string RowOf(const ComparedRun& run, const std::vector<std::string>& values, size_t color) {
  const RunHistory& h = run.history;
  const Result result = ResultOf(h);
  const std::string name = run.name.empty() ? "." : run.name;
  std::string row = fmt::format(
      "<tr><td><b style=\"background:var({})\"></b><a href=\"{}report.html\">{}</a></td>",
      color < kColors ? fmt::format("--run{}", color) : "--soft",
      run.name.empty() ? "" : EscapeHtml(PercentEncoded(run.name, true)) + "/", EscapeHtml(name));
  for (const std::string& value : values) row += fmt::format("<td>{}</td>", EscapeHtml(value));
  row += fmt::format("<td>{}</td><td>{}</td>", LossText(result), result.step);
  const double spent = (h.step_ms.sum() + h.pauses.total()) * 1e-3;
  const std::string speed = FormatCount(h.tokens_per_second.Median(1, h.last_step()));
  row += fmt::format("<td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                     h.loss.empty() ? "" : fmt::format("{:.4f}", h.loss.buckets().back().mean()),
                     speed, FormatDuration(spent),
                     run.finished ? fmt::format("finished, {} steps", h.last_step())
                                  : fmt::format("at step {}", h.last_step()));
  return row;
}

}  // namespace

std::vector<ComparedRun> FindRuns(const std::string& folder, std::vector<ComparedRun> before) {
  namespace fs = std::filesystem;
  std::vector<ComparedRun> runs;
  if (IsRun(folder)) runs.push_back(ReadRun(folder, "", before));
  std::vector<std::string> names;
  std::error_code error;
  const auto skip = fs::directory_options::skip_permission_denied;
  for (auto it = fs::recursive_directory_iterator(folder, skip, error), end = decltype(it)();
       !error && it != end; it.increment(error)) {
    if (!it->is_directory(error)) continue;
    if (it->path().filename() == "checkpoints") {
      it.disable_recursion_pending();
    } else if (IsRun(it->path().string())) {
      names.push_back(it->path().lexically_relative(folder).string());
    }
  }
  if (error) throw IoError(StrCat("cannot list the runs in ", folder, ": ", error.message()));
  std::ranges::sort(names);
  for (std::string& name : names) runs.push_back(ReadRun(JoinPath(folder, name), name, before));
  return runs;
}

RunDifferences DifferencesOf(const std::vector<ComparedRun>& runs) {
  RunDifferences result;
  result.values.resize(runs.size());
  // Values by run, by key; the keys in the order of the options.
  std::vector<std::vector<OptionDifference>> options;
  for (const ComparedRun& run : runs) {
    options.push_back(Compare(RunConfig(), run.config.value_or(RunConfig())));
  }
  for (size_t k = 0; !options.empty() && k < options[0].size(); ++k) {
    const OptionDifference& option = options[0][k];
    if (option.operational || option.of_machine) continue;
    const auto same = [&](const auto& of_run) { return of_run[k].b == option.b; };
    if (std::ranges::all_of(options, same)) continue;
    result.keys.push_back(option.key);
    for (size_t i = 0; i < runs.size(); ++i) {
      result.values[i].push_back(runs[i].config ? options[i][k].b : "?");
    }
  }
  return result;
}

std::string TableOf(const std::vector<ComparedRun>& runs) {
  RunDifferences differences = DifferencesOf(runs);
  const auto seed = std::ranges::find(differences.keys, "seed") - differences.keys.begin();
  const bool has_seeds = seed < std::ssize(differences.keys);
  if (has_seeds) {
    differences.keys.erase(differences.keys.begin() + seed);
    for (auto& values : differences.values) values.erase(values.begin() + seed);
  }
  std::map<std::vector<std::string>, std::vector<size_t>> groups;
  for (const size_t i : Ranked(runs)) groups[differences.values[i]].push_back(i);
  struct Row {
    double loss;
    std::vector<std::string> cells;
  };
  std::vector<Row> rows;
  for (const auto& [values, members] : groups) {
    double mean = 0, squares = 0;
    for (const size_t i : members) mean += ResultOf(runs[i].history).loss;
    mean /= static_cast<double>(members.size());
    for (const size_t i : members) squares += std::pow(ResultOf(runs[i].history).loss - mean, 2);
    const Result best = ResultOf(runs[members[0]].history);
    Row row{mean, {LossText({mean, 0, false})}};
    if (has_seeds) {
      const auto n = static_cast<double>(members.size());
      row.cells.push_back(n > 1 ? fmt::format("{:.4f}", std::sqrt(squares / (n - 1))) : "");
      row.cells.push_back(fmt::format("{}", members.size()));
    }
    row.cells.push_back(fmt::format("{}", best.step));
    row.cells.insert(row.cells.end(), values.begin(), values.end());
    row.cells.push_back(runs[members[0]].name);
    rows.push_back(std::move(row));
  }
  std::ranges::stable_sort(rows, {}, &Row::loss);
  const bool validated =
      std::ranges::any_of(runs, [](auto& run) { return !run.history.val_loss.empty(); });
  std::vector<std::vector<std::string>> table(1);
  table[0] = {validated ? "best validation loss" : "training loss"};
  if (has_seeds) table[0].insert(table[0].end(), {"deviation", "seeds"});
  table[0].push_back("at step");
  table[0].insert(table[0].end(), differences.keys.begin(), differences.keys.end());
  table[0].push_back(has_seeds ? "best run" : "run");
  for (Row& row : rows) table.push_back(std::move(row.cells));
  return TextOf(table);
}

std::string RenderRuns(const std::string& title, const std::vector<ComparedRun>& runs,
                       bool reloads) {
  std::string s = PageHead(title, reloads ? 10 : 0);
  s += fmt::format("<header class=\"top\"><h1>{}</h1><span class=\"chip\">{} {}</span></header>\n",
                   EscapeHtml(title), runs.size(), runs.size() == 1 ? "run" : "runs");
  if (runs.empty()) {
    return s +
           "<p class=\"card\">There is no run here yet: a run's folder has a config.toml and a "
           "metrics.jsonl.</p></main>\n</body>\n</html>\n";
  }
  const RunDifferences differences = DifferencesOf(runs);
  std::vector<PlotLine> validation, training;
  std::string head = "<tr><th>run</th>", rows;
  for (const std::string& key : differences.keys) {
    head += fmt::format("<th>{}</th>", EscapeHtml(key));
  }
  head +=
      "<th>best validation loss</th><th>at step</th><th>training loss</th><th>tokens/s</th>"
      "<th>time</th><th></th></tr>";
  int64_t last = 1;
  size_t color = 0;
  for (const size_t i : Ranked(runs)) {
    const RunHistory& h = runs[i].history;
    last = std::max(last, h.last_step());
    rows += RowOf(runs[i], differences.values[i], color);
    const PlotLine line{.name = runs[i].name.empty() ? "." : runs[i].name,
                        .color = color < kColors ? fmt::format("--run{}", color) : "--soft",
                        .faint = color >= kColors,
                        .end_label = false};
    validation.push_back(line);
    validation.back().points = PointsOf(h.val_loss);
    validation.back().dots = true;
    training.push_back(line);
    training.back().points = Smoothed(PointsOf(h.loss));
    ++color;
  }
  const PlotOptions wide{
      .title = {}, .width = 1180, .height = 340, .last_x = static_cast<double>(last), .rules = {}};
  s += "<div class=\"charts\">\n";
  const auto has_points = [](const PlotLine& line) { return !line.points.empty(); };
  if (std::ranges::any_of(validation, has_points)) {
    s += Figure("Validation loss", "the best run is the first of the table", validation, wide,
                /*wide=*/true);
  }
  s += Figure("Training loss", "smoothed", training, wide, /*wide=*/true);
  s += fmt::format(
      "</div>\n<section class=\"card\"><div class=\"head\"><h2>Runs</h2><span class=\"note\">the "
      "best first</span></div><div class=\"scroll\"><table class=\"runs\">{}{}</table></div>"
      "</section>\n",
      head, rows);
  return s +
         PageEnd(
             "Made by Lockstep from each run's metrics.jsonl. Point at a chart for its values.");
}

}  // namespace lockstep::models
