// bazel run -c opt //tools:plan -- --model.preset=llama-3-8b --gpus=8x80 ...
#include <cstdio>
#include <string>

#include "models/memory/gpu_plan.h"
#include "models/options/config.h"
#include "models/options/invocation.h"
#include "models/options/options.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    models::EnterInvocationFolder();
    models::RunConfig config;
    models::Options options(
        {.name = "plan",
         .summary = "Plans the memory of a run on GPUs that need not be here, with the options of "
                    "train_gpt. Exit code 0: it fits; 1: it does not.",
         .example = "plan --model.preset=llama-3-8b --train.precision=bf16 --parallel.shard=full "
                    "--gpus=8x80"});
    models::AddRunOptions(options, config);
    std::string gpus = "1x80", hosts;
    options.Add("gpus", &gpus,
                {.operational = true,
                 .doc = "number of GPUs, with a rank on each, and GB of memory of each: 8x80"});
    options.Add("hosts", &hosts,
                {.operational = true,
                 .doc = "number of machines with these GPUs, and GB of host memory of each, for "
                        "offload and checkpoints: 1x512; empty: enough"});
    if (const auto exit_code = options.Start(argc, argv)) return *exit_code;
    size_t printed = 0;
    const models::GpuPlan plan = models::PlanOnGpus(
        options, config, models::ParseDeviceSet("gpus", gpus),
        hosts.empty() ? models::DeviceSet{} : models::ParseDeviceSet("hosts", hosts),
        [&](const std::string& text) {
          std::puts(text.c_str());
          std::fflush(stdout);
          std::fputs("plan: searching for what would fit\n", stderr);
          printed = text.size() + 1;
        });
    std::puts(plan.text.c_str() + printed);
    return plan.fits ? 0 : 1;
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "plan: %s\n", e.what());
    return ExitCodeOf(e);
  }
}
