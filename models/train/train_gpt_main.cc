// bazel run -c opt //models:train_gpt -- [config.toml] --section.key=value ...
#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "dist/launch/launch.h"
#include "dist/launch/nproc.h"
#include "models/options/invocation.h"
#include "models/plan/auto_plan.h"
#include "models/sweep/sweep.h"
#include "models/train/budget/run_budget.h"
#include "models/train/interrupt.h"
#include "models/train/run_data.h"
#include "models/train/train_gpt.h"

namespace {

using namespace lockstep;

struct CommandLine {
  models::RunConfig config;
  models::RunMode mode;
  bool plans = false;
  models::Options options{
      {.name = "train_gpt",
       .summary =
           "Trains a GPT from scratch, on your text or on the embedded one; with --nproc=N in N "
           "processes on this machine; with --sweep KEY=VALUE,VALUE once for each value; with "
           "--budget=10m (or 2h, 1e18flops, 3e9tokens) the best one that it can make of the text "
           "in that time.",
       .example = "train_gpt --data.path=input.txt --depth=4"}};

  CommandLine() {
    models::AddRunOptions(options, config);
    options.AddFlag("dry_run", &mode.dry_run, "only print what would be trained, or evaluated");
    options.AddFlag("auto", &plans,
                    "first choose the fastest plan that fits on the ranks that were started: "
                    "micro-batches, recomputation, parallel.*, and what else is left open");
    options.AddFlag("eval_only", &mode.evaluates,
                    "only print the validation loss of init_from, on data.path (for a run's own: "
                    "RUN/config.toml) as it would be split and partitioned for training; write no "
                    "files");
  }
};

// Of a run of a sweep.
models::RunConfig ReadRun(const std::vector<std::string>& arguments) {
  CommandLine line;
  line.options.Parse(arguments, ProcessEnvironment());
  if (line.mode.evaluates || line.mode.dry_run) {
    throw InputError("--sweep trains its runs: leave --dry_run and --eval_only out, or --sweep");
  }
  if (line.plans) {
    throw InputError("--auto plans a single run: plan one, and sweep over its config.toml");
  }
  return models::SettleTokenizer(line.options, line.config);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    const auto nproc = dist::TakeNproc("train_gpt", &arguments);
    const models::Sweep sweep = models::TakeSweep(&arguments);
    std::optional<models::Budget> budget;
    for (const std::string& text : dist::TakeOption("--budget", "--budget=10m", &arguments)) {
      budget = models::ParseBudget(text);
    }
    models::EnterInvocationFolder();
    CommandLine line;
    std::vector<std::string> first = arguments;
    if (!sweep.empty()) {
      std::ranges::copy(ArgumentsOf(PointsOf(sweep)[0]), std::back_inserter(first));
    }
    if (const auto exit_code = line.options.Start(first)) return *exit_code;
    if (budget) {
      if (nproc) throw InputError("--budget measures a single process: use --depth=N with --nproc");
      if (!sweep.empty()) throw InputError("--budget chooses a run itself: leave --sweep out");
      std::ranges::copy(models::ChooseRun(*budget, line.options, line.config),
                        std::back_inserter(arguments));
      line.options.Parse(arguments, ProcessEnvironment());
    }
    if (nproc || !sweep.empty()) {
      std::vector<std::string> command = arguments;
      command.insert(command.begin(), argv[0]);  // the same name: one binary may be several
      const bool elastic = line.config.dist.elastic && !line.mode.evaluates && !line.mode.dry_run;
      const dist::LaunchOptions launch{.command = command,
                                       .nproc = nproc.value_or(1),
                                       .max_restarts = elastic ? dist::kElasticRestarts : 0,
                                       .elastic = elastic,
                                       .only_rank_0_prints = !nproc};
      if (sweep.empty()) return dist::Launch(launch);
      return models::TrainSweep(sweep, line.config.out_dir, launch, ReadRun);
    }
    const models::SignalThread signals;
    if (line.plans && line.mode.evaluates) {
      throw InputError("--eval_only has no steps to plan: leave --auto out");
    }
    if (line.plans) {
      std::ranges::copy(models::PlanRun(line.options, line.config), std::back_inserter(arguments));
      line.options.Parse(arguments, ProcessEnvironment());
    }
    return models::TrainGpt(line.options, line.config, line.mode);
  } catch (const std::exception& e) {
    return dist::EndWith("train_gpt", e);
  }
}
