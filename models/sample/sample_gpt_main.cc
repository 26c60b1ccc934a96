// bazel run -c opt //models:sample_gpt -- --checkpoint=out/latest --prompt="..." --tokens=200
#include <cstdio>

#include "core/error.h"
#include "dist/launch/launch.h"
#include "dist/launch/nproc.h"
#include "models/options/invocation.h"
#include "models/sample/sample_gpt.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    const auto launched = dist::LaunchIfAsked(argc, argv, {.only_rank_0_prints = true});
    if (launched) return *launched;
    models::EnterInvocationFolder();
    models::SampleConfig config;
    models::Options options({.name = "sample_gpt",
                             .summary =
                                 "Continues prompts with a trained GPT; with --nproc=N in N "
                                 "processes on this machine, each of which has a part of it.",
                             .example = "sample_gpt --checkpoint=out/latest --prompt=\"Once\"",
                             .takes_file = false});
    models::AddSampleOptions(options, config);
    if (const auto exit_code = options.Start(argc, argv)) return *exit_code;
    return models::SampleGpt(config);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    dist::TellLauncher(e);
    std::fprintf(stderr, "sample_gpt: %s\n", e.what());
    return 1;
  }
}
