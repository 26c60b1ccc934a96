// bazel run -c opt //tools:evaluate -- --checkpoint=out --tasks=hellaswag,piqa
#include <string>
#include <vector>

#include "dist/launch/launch.h"
#include "dist/launch/nproc.h"
#include "models/evaluate/evaluate_gpt.h"
#include "models/options/invocation.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    const auto nproc = dist::TakeNproc("evaluate", &arguments);
    models::EnterInvocationFolder();
    models::EvaluateConfig config;
    models::Options options(
        {.name = "evaluate",
         .summary = "Evaluates a GPT: tasks by the rules of lm-evaluation-harness, and the "
                    "perplexity of texts; with --nproc=N in N processes on this machine.",
         .example = "evaluate --checkpoint=out --tasks=hellaswag,arc_easy,piqa",
         .takes_file = false});
    models::AddEvaluateOptions(options, config);
    if (const auto exit_code = options.Start(arguments)) return *exit_code;
    if (nproc) {
      arguments.insert(arguments.begin(), argv[0]);
      return dist::Launch({.command = arguments, .nproc = *nproc, .only_rank_0_prints = true});
    }
    const int exit_code = models::EvaluateGpt(config);
    models::CheckOutput();
    return exit_code;
  } catch (const std::exception& e) {
    return dist::EndWith("evaluate", e);
  }
}
