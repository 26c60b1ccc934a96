// bazel run -c opt //tools:plan -- --model.preset=llama-3-8b --cluster=64xH100 ...
#include <chrono>
#include <cstdio>
#include <string>

#include "core/io/file.h"
#include "dist/control/rendezvous.h"
#include "models/memory/gpu_plan.h"
#include "models/options/config.h"
#include "models/options/invocation.h"
#include "models/options/options.h"
#include "models/plan/calibration.h"
#include "models/plan/cluster_file.h"
#include "models/plan/plan_report.h"

namespace lockstep::models {
namespace {

struct Asked {
  std::string gpus = "1x80", hosts;     // the memory of one plan
  std::string cluster, write, picture;  // a search
  std::string calibrate;                // a measurement
  double tokens = 0;
};

// Fails for options without effect.
void CheckAsked(const Options& options, const Asked& asked) {
  const auto refuse = [&](std::initializer_list<const char*> keys, const char* why) {
    for (const char* key : keys) {
      if (options.IsWritten(key)) options.Fail({key}, StrCat(options.Describe(key), why));
    }
  };
  if (!asked.calibrate.empty()) {
    return refuse({"cluster", "tokens", "write", "picture", "gpus", "hosts"},
                  " does nothing with calibrate, which only measures: leave one of them out");
  }
  if (asked.cluster.empty()) {
    return refuse({"tokens", "write", "picture"},
                  " does nothing without cluster: use cluster = \"64xH100\", or leave it out");
  }
  refuse({"gpus", "hosts"}, " does nothing with cluster, which says both: leave one of them out");
}

// Collective.
int CalibrateThis(const RunConfig& config, const std::string& file) {
  const Cluster cluster = Calibrate(config);
  if (dist::ReadRendezvous().rank > 0) return 0;
  WriteFileAtomically(file, ToJson(cluster));
  std::puts(StrCat(Describe(cluster), "; ", file,
                   " has what was measured, for plan --cluster=", cluster.devices, "x", file)
                .c_str());
  return 0;
}

// Whether the plan that the options describe fits.
int PlanOne(const Options& options, const RunConfig& config, const Asked& asked) {
  size_t printed = 0;
  const GpuPlan plan =
      PlanOnGpus(options, config, ParseDeviceSet("gpus", asked.gpus),
                 asked.hosts.empty() ? DeviceSet{} : ParseDeviceSet("hosts", asked.hosts),
                 [&](const std::string& text) {
                   std::puts(text.c_str());
                   std::fflush(stdout);
                   std::fputs("plan: searching for what would fit\n", stderr);
                   printed = text.size() + 1;
                 });
  std::puts(plan.text.c_str() + printed);
  return plan.fits ? 0 : 1;
}

// The best plans of all.
int Search(const Options& options, const RunConfig& config, const Asked& asked) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const Cluster cluster = ParseCluster(
      asked.cluster, options.IsWritten("train.precision") ? config.train.precision : "bf16");
  const RunSetup setup = PrepareForSearch(options, config, cluster);
  const SearchResult found = SearchPlans(options, setup, cluster);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::fputs(ReportOf(setup, cluster, found, asked.tokens, seconds).c_str(), stdout);
  if (found.best.empty()) return 1;
  const FoundPlan& best = found.best.front();
  if (!asked.write.empty()) {
    WriteFileAtomically(asked.write, TomlOf(setup, best.layout, asked.tokens));
  }
  if (!asked.picture.empty()) {
    WriteFileAtomically(asked.picture, PictureOf(setup, cluster, best));
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::models

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    models::EnterInvocationFolder();
    models::RunConfig config;
    models::Options options(
        {.name = "plan",
         .summary = "Plans a run on GPUs that need not be here, with the options of train_gpt: "
                    "with --cluster the fastest plans that fit, else the memory of the plan that "
                    "the options say. Exit code 0: one fits; 1: none does.",
         .example = "plan --model.preset=llama-3-8b --cluster=64xH100 --tokens=1e12 "
                    "--write=plan.toml"});
    models::AddRunOptions(options, config);
    models::Asked asked;
    options.Add(
        "cluster", &asked.cluster,
        {.operational = true,
         .doc = "number and kind of the devices to search plans for: 64xH100 (A100, "
                "A100-40, H100, H200 or RTX4090, eight in a node), 2xcpu, or 2xmachine.json "
                "by what calibrate wrote; options that are given, such as parallel.tp, "
                "stay as they are"});
    options.Add("calibrate", &asked.calibrate,
                {.operational = true,
                 .doc = "file (machine.json) to write what this machine's device reaches in some "
                        "seconds of training, and, started by launch --nproc=2, the links between "
                        "ranks: --cluster=8xmachine.json then plans for such devices"});
    options.Add("tokens", &asked.tokens,
                {.min = 0,
                 .max = 1e18,
                 .operational = true,
                 .doc = "with cluster: tokens to train on, whose cost is said; 0: not said"});
    options.Add("write", &asked.write,
                {.operational = true,
                 .doc = "with cluster: file to write the best plan's configuration to"});
    options.Add(
        "picture", &asked.picture,
        {.operational = true, .doc = "with cluster: HTML file to draw the best plan's step in"});
    options.Add("gpus", &asked.gpus,
                {.operational = true,
                 .doc = "without cluster: number of GPUs, with a rank on each, and GB of memory of "
                        "each: 8x80"});
    options.Add("hosts", &asked.hosts,
                {.operational = true,
                 .doc = "number of machines with these GPUs, and GB of host memory of each, for "
                        "offload and checkpoints: 1x512; empty: enough"});
    options.OnResolve([&](const models::Options&) { models::CheckAsked(options, asked); });
    if (const auto exit_code = options.Start(argc, argv)) return *exit_code;
    if (!asked.calibrate.empty()) return models::CalibrateThis(config, asked.calibrate);
    return asked.cluster.empty() ? models::PlanOne(options, config, asked)
                                 : models::Search(options, config, asked);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "plan: %s\n", e.what());
    return ExitCodeOf(e);
  }
}
