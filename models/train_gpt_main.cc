// bazel run -c opt //models:train_gpt -- [config.toml] --section.key=value ...
#include <cstdio>

#include "models/train_gpt.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    models::EnterInvocationFolder();
    models::RunConfig config;
    models::Options options(
        {.name = "train_gpt",
         .summary = "Trains a GPT from scratch, on a text of yours or on the embedded one.",
         .example = "train_gpt --data.path=input.txt --model.preset=shakespeare-char-cpu"});
    models::AddRunOptions(options, config);
    bool dry_run = false;
    options.AddFlag("dry_run", &dry_run, "tell what would be trained, and stop");
    if (const auto exit_code = options.Start(argc, argv)) return *exit_code;
    return models::TrainGpt(options, config, dry_run);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "train_gpt: %s\n", e.what());
    return 1;
  }
}
