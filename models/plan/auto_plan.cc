#include "models/plan/auto_plan.h"

#include <fmt/format.h>

#include <chrono>
#include <iterator>
#include <sstream>
#include <string_view>

#include "core/io/file.h"
#include "core/thread_pool.h"
#include "dist/launch/rank_device.h"
#include "models/memory/memory_advice.h"
#include "models/options/plan_rules.h"
#include "models/plan/plan_report.h"
#include "models/plan/quick_memory.h"
#include "models/report/run_progress.h"
#include "models/train/run_checks.h"
#include "models/train/run_ranks.h"

namespace lockstep::models {
namespace {

constexpr size_t kBest = 3;            // plans that are printed
constexpr double kAdviceSeconds = 20;  // of CPU time

// The plan without what `key` says of it; the ranks of an axis then are data ranks. None if it is
// as it would be in any case.
std::optional<Layout> Without(std::string_view key, Layout l) {
  const Layout plan = l, plain;
  if (key == "train.recompute") l.recompute = plain.recompute;
  if (key == "train.offload") l.offload = plain.offload;
  if (key == "parallel.schedule") l.schedule = plain.schedule;
  if (key == "parallel.shard") l.shard = plain.shard, l.shard_ranks = 0;
  if (key == "parallel.shard_ranks") l.shard_ranks = 0;
  if (key == "parallel.ep") l.mesh.ep = 1;
  for (const auto& [axis, size] : {std::pair("parallel.tp", &MeshSizes::tp),
                                   {"parallel.pp", &MeshSizes::pp},
                                   {"parallel.cp", &MeshSizes::cp}}) {
    if (key == axis) l.mesh.dp *= std::exchange(l.mesh.*size, 1);
  }
  if (l.mesh.pp == 1) l.schedule = plain.schedule;
  if (key == "train.batch_size") l.batch = 1;
  const int64_t samples = plan.batch * plan.grad_accum * plan.mesh.dp;
  l.grad_accum = samples / (l.batch * l.mesh.dp);
  if (l == plan || l.grad_accum * l.batch * l.mesh.dp != samples) return {};
  return l;
}

// Why a value of a plan was chosen: by what the plan would be without it.
std::string ReasonFor(std::string_view key, const RunSetup& setup, const Cluster& cluster,
                      const FoundPlan& plan) {
  if (key == "train.global_batch_size") return "as many sequences a step as without a plan";
  if (key == "train.precision") return "what these GPUs compute in fastest";
  const auto without = Without(key, plan.layout);
  if (!without) return "as the fastest plan that fits has it";
  RunSetup run = setup;
  Apply(*without, run);
  std::string why;
  if (BrokenRule(FactsOf(run), &why) != nullptr) return "else " + why;
  double bytes = 0;
  try {
    bytes = QuickMemory(setup).Of(*without).total;
  } catch (const Error& error) {
    return StrCat("else ", error.what());
  }
  if (const auto has = static_cast<double>(cluster.bytes); bytes > (1 - kPlanTolerance) * has) {
    return fmt::format("else a rank would need about {} of {}", FormatDecimalBytes(bytes),
                       FormatDecimalBytes(has));
  }
  const double seconds = TimeOf(PlannedModel::Of(setup), *without, cluster).total;
  const double longer = seconds / plan.time.total - 1;
  if (longer > 0) return fmt::format("else a step takes {:.1f}% longer on paper", 100 * longer);
  return "else it would be too close to the memory that there is";
}

std::vector<std::string> WordsOf(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

// The plan of the run in out_dir, as far as the user left it open.
std::string PlanOfRunIn(const std::string& file, const Options& options, const RunConfig& config) {
  RunConfig planned = config;
  TakePlan(RunConfigFromToml(ReadFile(file), file), &planned);
  std::string arguments;
  for (const std::string& word : WordsOf(ArgumentsOf(config, planned))) {
    if (!options.IsWritten(word.substr(2, word.find('=') - 2))) arguments += word + " ";
  }
  return arguments;
}

[[noreturn]] void RefuseAll(const RunSetup& setup, const Cluster& cluster,
                            const SearchResult& found, const std::string& report) {
  std::string advice;
  if (found.nearest) {
    RunSetup run = setup;
    Apply(*found.nearest, run);
    const auto fits = [&](const MemoryPlan& plan) {
      return static_cast<double>(plan.needed(run.device)) <=
                 (1 - kPlanTolerance) * static_cast<double>(cluster.bytes) &&
             (run.device.is_cpu() || plan.host <= cluster.host_bytes);
    };
    advice = StrCat("\nOf the nearest, ", Describe(*found.nearest), ": ",
                    MemoryAdvice(run, {{fits}}, FormatDecimalBytes, kAdviceSeconds));
  }
  throw InputError(StrCat("--auto found no plan for these ranks: ", report, advice));
}

// On rank 0.
std::string ChoosePlan(const Options& options, const RunConfig& config,
                       const dist::Rendezvous& ranks) {
  const std::string file = JoinPath(config.out_dir, "config.toml");
  if (PathExists(file)) {
    Print(StrCat("with the plan of the run in ", config.out_dir));
    return PlanOfRunIn(file, options, config);
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const Device device = dist::DeviceOfRank(config.device, ranks);
  SetNumThreads(ThreadsOf(config, ranks));
  const Cluster cluster = ClusterOfRanks(
      ranks, device, options.IsWritten("train.precision") ? config.train.precision : "bf16");
  const RunSetup setup = PrepareForSearch(options, config, cluster);
  const SearchResult found = SearchPlans(options, setup, cluster, {.best = kBest});
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const std::string report = ReportOf(setup, cluster, found, /*tokens=*/0, seconds);
  if (found.best.empty()) RefuseAll(setup, cluster, found, report);
  Print(report);
  const std::string arguments = ArgumentsOf(setup, found.best[0].layout, /*tokens=*/0);
  for (const std::string& argument : WordsOf(arguments)) {
    const std::string key = argument.substr(2, argument.find('=') - 2);
    const bool is_kept = options.IsWritten(key) && key != "train.recompute";  // = auto is not
    if (!is_kept)
      Print(StrCat("  ", argument, "  # ", ReasonFor(key, setup, cluster, found.best[0])));
  }
  return arguments;
}

}  // namespace

std::vector<std::string> PlanRun(const Options& options, const RunConfig& config) {
  if (config.dist.elastic) {
    options.Fail({"dist.elastic"},
                 StrCat(options.Describe("dist.elastic"), " goes on with other numbers of ranks, ",
                        "and --auto plans for one: leave one of them out"));
  }
  RunConfig plain;  // for the ranks to meet, before it is known what they share out
  plain.dist.timeout = config.dist.timeout;
  plain.dist.heartbeat = config.dist.heartbeat;
  const dist::Rendezvous rendezvous = dist::ReadRendezvous();
  const RunRanks ranks(plain, rendezvous, kCpu, /*recorder=*/nullptr);
  return WordsOf(ranks.OnEveryRank(
      [&] { return ranks.is_main() ? ChoosePlan(options, config, rendezvous) : ""; })[0]);
}

}  // namespace lockstep::models
