// bazel run -c opt //models:train_gpt -- [config.toml] --section.key=value ...
#include <string>
#include <vector>

#include "dist/launch/launch.h"
#include "dist/launch/nproc.h"
#include "models/options/invocation.h"
#include "models/train/interrupt.h"
#include "models/train/train_gpt.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    const auto nproc = dist::TakeNproc("train_gpt", &arguments);
    models::EnterInvocationFolder();
    models::RunConfig config;
    models::Options options(
        {.name = "train_gpt",
         .summary =
             "Trains a GPT from scratch, on your text or on the embedded one; with --nproc=N in N "
             "processes on this machine.",
         .example = "train_gpt --data.path=input.txt --model.preset=shakespeare-char-cpu"});
    models::AddRunOptions(options, config);
    models::RunMode mode;
    options.AddFlag("dry_run", &mode.dry_run, "only print what would be trained, or evaluated");
    options.AddFlag("eval_only", &mode.evaluates,
                    "only print the validation loss of init_from, on data.path (for a run's own: "
                    "RUN/config.toml) as it would be split and partitioned for training; write no "
                    "files");
    if (const auto exit_code = options.Start(arguments)) return *exit_code;
    if (nproc) {
      arguments.insert(arguments.begin(), argv[0]);  // the same name: one binary may be several
      const bool elastic = config.dist.elastic && !mode.evaluates && !mode.dry_run;
      return dist::Launch({.command = arguments,
                           .nproc = *nproc,
                           .max_restarts = elastic ? dist::kElasticRestarts : 0,
                           .elastic = elastic});
    }
    const models::SignalThread signals;
    return models::TrainGpt(options, config, mode);
  } catch (const std::exception& e) {
    return dist::EndWith("train_gpt", e);
  }
}
