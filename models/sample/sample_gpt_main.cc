// bazel run -c opt //models:sample_gpt -- --checkpoint=out/latest --prompt="..." --tokens=200
#include <string>
#include <vector>

#include "dist/launch/launch.h"
#include "dist/launch/nproc.h"
#include "models/options/invocation.h"
#include "models/sample/sample_gpt.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    const auto nproc = dist::TakeNproc("sample_gpt", &arguments);
    models::EnterInvocationFolder();
    models::SampleConfig config;
    models::Options options({.name = "sample_gpt",
                             .summary =
                                 "Continues prompts with a trained GPT; with --nproc=N in N "
                                 "processes on this machine, each of which has a part of it.",
                             .example = "sample_gpt --checkpoint=out/latest --prompt=\"Once\"",
                             .takes_file = false});
    models::AddSampleOptions(options, config);
    if (const auto exit_code = options.Start(arguments)) return *exit_code;
    if (nproc) {
      arguments.insert(arguments.begin(), argv[0]);
      return dist::Launch({.command = arguments, .nproc = *nproc, .only_rank_0_prints = true});
    }
    const int exit_code = models::SampleGpt(config);
    models::CheckOutput();
    return exit_code;
  } catch (const std::exception& e) {
    return dist::EndWith("sample_gpt", e);
  }
}
