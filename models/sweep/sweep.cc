#include "models/sweep/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/io/file.h"
#include "core/philox.h"
#include "dist/launch/nproc.h"
#include "models/checkpoint/run_folder.h"
#include "models/report/run_progress.h"
#include "models/sweep/compared_runs.h"

namespace lockstep::models {
namespace {

// More are rather a mistake than a plan.
constexpr size_t kMostRuns = 10'000;

struct Axis {
  std::string key;
  std::vector<std::string> values;
  std::optional<std::pair<double, double>> range;  // then there are no values
  bool whole = false;                              // of a range
};

std::optional<double> NumberIn(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool read = error == std::errc() && end == text.data() + text.size();
  return read && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

[[noreturn]] void Refuse(const std::string& axis, const std::string& why) {
  throw InputError(StrCat("--sweep ", axis, ": ", why,
                          "; write --sweep optim.lr=1e-3,2e-3, or, with --sweep_draws=20, ",
                          "--sweep optim.lr=1e-4..1e-2"));
}

Axis ReadAxis(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) Refuse(text, "names no option and its values");
  Axis axis{.key = text.substr(0, equals)};
  const std::string values = text.substr(equals + 1);
  if (const size_t dots = values.find(".."); dots != std::string::npos) {
    const std::string low = values.substr(0, dots), high = values.substr(dots + 2);
    const auto from = NumberIn(low), to = NumberIn(high);
    // Paths may contain two dots as well.
    if (from && to) {
      if (!(*from < *to)) Refuse(text, "the range does not ascend");
      axis.range = {*from, *to};
      axis.whole = (low + high).find_first_not_of("-0123456789") == std::string::npos;
      return axis;
    }
  }
  for (size_t begin = 0; begin <= values.size();) {
    const size_t end = std::min(values.find(',', begin), values.size());
    axis.values.push_back(values.substr(begin, end - begin));
    if (axis.values.back().empty()) Refuse(text, "a value is empty");
    begin = end + 1;
  }
  const std::set<std::string> different(axis.values.begin(), axis.values.end());
  if (different.size() < axis.values.size()) Refuse(text, "a value is there twice");
  return axis;
}

std::vector<Axis> ReadAxes(const Sweep& sweep) {
  std::vector<Axis> axes;
  for (const std::string& text : sweep.axes) {
    axes.push_back(ReadAxis(text));
    const std::string& key = axes.back().key;
    const auto has_key = [&](const Axis& a) { return a.key == key; };
    if (std::ranges::count_if(axes, has_key) > 1) {
      Refuse(text, StrCat(key, " is there twice: list all its values in one --sweep"));
    }
    if (key == "out_dir") Refuse(text, "each run has a folder of its own already");
    if (axes.back().range && sweep.draws == 0) {
      Refuse(text, "a range has no end of values: add --sweep_draws=N, the number of runs");
    }
  }
  if (axes.empty())
    throw InputError("--sweep_draws has nothing to draw: add --sweep KEY=LOW..HIGH");
  return axes;
}

// What names an axis in a folder: the last part of its key, unless another has the same.
std::string LabelOf(const Axis& axis, const std::vector<Axis>& all) {
  const auto last = [](const Axis& a) { return a.key.substr(a.key.rfind('.') + 1); };
  const auto same = [&](const Axis& a) { return last(a) == last(axis); };
  return std::ranges::count_if(all, same) > 1 ? axis.key : last(axis);
}

SweepPoint MakePoint(const std::vector<Axis>& axes, const std::vector<std::string>& values) {
  SweepPoint point;
  for (size_t i = 0; i < axes.size(); ++i) {
    point.settings.emplace_back(axes[i].key, values[i]);
    point.name += StrCat(i > 0 ? "," : "", LabelOf(axes[i], axes), "=", values[i]);
  }
  std::ranges::replace(point.name, '/', '_');
  return point;
}

// The value of an axis in the run of this number. `share` in [0, 1).
std::string Draw(const Axis& axis, double share) {
  if (!axis.range) {
    return axis.values[static_cast<size_t>(share * static_cast<double>(axis.values.size()))];
  }
  const auto [low, high] = *axis.range;
  // Each whole number in the range has the same chance where the scale is linear.
  const double end = axis.whole ? high + 1 : high;
  const double value = low > 0 ? low * std::pow(end / low, share) : low + (end - low) * share;
  return axis.whole ? fmt::format("{}", static_cast<int64_t>(std::min(std::floor(value), high)))
                    : fmt::format("{:.3g}", value);
}

std::vector<SweepPoint> DrawnPoints(const std::vector<Axis>& axes, int64_t draws) {
  std::vector<SweepPoint> points;
  std::set<std::string> names;
  for (int64_t i = 0; i < draws; ++i) {
    std::vector<std::string> values;
    for (const Axis& axis : axes) {
      const Philox random(/*seed=*/HashName(axis.key));
      values.push_back(Draw(axis, ToUniform(random.At(/*stream=*/0, static_cast<uint64_t>(i)))));
    }
    SweepPoint point = MakePoint(axes, values);
    if (names.insert(point.name).second) points.push_back(std::move(point));
  }
  return points;
}

}  // namespace

Sweep TakeSweep(std::vector<std::string>* arguments) {
  const std::string example = "--sweep optim.lr=1e-3,2e-3";
  Sweep sweep{.axes = dist::TakeOption("--sweep", example, arguments)};
  for (const std::string& value : dist::TakeOption("--sweep_draws", example, arguments)) {
    const auto draws = NumberIn(value);
    if (!draws || *draws < 1 || *draws != std::floor(*draws) || *draws > kMostRuns) {
      throw InputError(StrCat("--sweep_draws is '", value,
                              "'; it must be a whole number, from 1 to ", kMostRuns,
                              ": the number of runs"));
    }
    sweep.draws = static_cast<int64_t>(*draws);
  }
  return sweep;
}

std::vector<SweepPoint> PointsOf(const Sweep& sweep) {
  const std::vector<Axis> axes = ReadAxes(sweep);
  if (sweep.draws > 0) return DrawnPoints(axes, sweep.draws);
  size_t count = 1;
  for (const Axis& axis : axes) {
    count *= axis.values.size();
    if (count > kMostRuns) {
      throw InputError(StrCat("--sweep: these values make more than ", kMostRuns,
                              " runs: add --sweep_draws=N, for N of them"));
    }
  }
  std::vector<SweepPoint> points;
  for (size_t number = 0; number < count; ++number) {
    std::vector<std::string> values(axes.size());
    for (size_t rest = number, i = axes.size(); i-- > 0; rest /= axes[i].values.size()) {
      values[i] = axes[i].values[rest % axes[i].values.size()];
    }
    points.push_back(MakePoint(axes, values));
  }
  return points;
}

std::vector<std::string> ArgumentsOf(const SweepPoint& point) {
  std::vector<std::string> arguments;
  for (const auto& [key, value] : point.settings) {
    arguments.push_back(StrCat("--", key, "=", value));
  }
  return arguments;
}

namespace {

struct Run {
  SweepPoint point;
  std::vector<std::string> command;
  RunConfig config;
};

std::vector<Run> RunsOf(const Sweep& sweep, const std::vector<std::string>& command,
                        const std::string& out_dir, const ReadArguments& read) {
  std::vector<Run> runs;
  for (SweepPoint& point : PointsOf(sweep)) {
    Run run{.point = std::move(point), .command = command};
    std::ranges::copy(ArgumentsOf(run.point), std::back_inserter(run.command));
    run.command.push_back("--out_dir=" + JoinPath(out_dir, run.point.name));
    try {
      run.config = read({run.command.begin() + 1, run.command.end()});
    } catch (const InputError& e) {
      throw InputError(StrCat(e.what(), " (in the run ", run.point.name, " of the sweep)"));
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

std::vector<ComparedRun> WritePage(const std::string& out_dir) {
  std::vector<ComparedRun> runs = FindRuns(out_dir);
  WriteFileAtomically(JoinPath(out_dir, "runs.html"), RenderRuns(out_dir, runs, /*reloads=*/false));
  return runs;
}

}  // namespace

int TrainSweep(const Sweep& sweep, const std::string& out_dir, const dist::LaunchOptions& launch,
               const ReadArguments& read) {
  if (PathExists(JoinPath(out_dir, "config.toml"))) {
    throw InputError(StrCat(out_dir, " is the folder of a run: give the sweep another, by ",
                            "--out_dir=, in which each of its runs has one"));
  }
  const std::vector<Run> runs = RunsOf(sweep, launch.command, out_dir, read);
  MakeDirectories(out_dir);
  std::string failed;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string title = StrCat("run ", i + 1, " of ", runs.size(), ": ", runs[i].point.name);
    if (HoldsFinishedRun(runs[i].config)) {
      Print(title + ": finished");
      continue;
    }
    Print(title);
    dist::LaunchOptions one = launch;
    one.command = runs[i].command;
    const int code = dist::Launch(one);
    WritePage(out_dir);
    if (code >= 128) {
      Print("the sweep was stopped; the same command goes on with it");
      return code;
    }
    if (code != 0) failed += StrCat("\n  ", JoinPath(out_dir, runs[i].point.name));
  }
  Print("\n" + TableOf(WritePage(out_dir)) + "\nall curves: " + JoinPath(out_dir, "runs.html"));
  if (failed.empty()) return 0;
  Print("these failed, and the same command tries them again:" + failed);
  return 1;
}

}  // namespace lockstep::models
