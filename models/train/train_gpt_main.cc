// bazel run -c opt //models:train_gpt -- [config.toml] --section.key=value ...
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "dist/launch/launch.h"
#include "dist/launch/nproc.h"
#include "models/train/interrupt.h"
#include "models/train/train_gpt.h"

namespace {

// With --nproc=N runs this program as N ranks with the other arguments, and returns the exit code;
// else returns nullopt.
std::optional<int> LaunchIfAsked(int argc, char** argv) {
  using namespace lockstep;
  constexpr std::string_view kOption = "--nproc=";
  dist::LaunchOptions options;
  options.command = {argv[0]};  // the same name: one binary may be several programs
  std::optional<std::string> nproc;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with(kOption)) {
      nproc = argument.substr(kOption.size());
    } else {
      options.command.push_back(argument);
    }
  }
  if (!nproc) return {};
  if (std::getenv("RANK") != nullptr) {
    throw InputError(StrCat(kOption, *nproc,
                            " starts ranks, but by the environment variable RANK this process "
                            "already is one: leave the option out"));
  }
  options.nproc = dist::ReadNproc(*nproc);
  return dist::Launch(options);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    if (const auto exit_code = LaunchIfAsked(argc, argv)) return *exit_code;
    const models::SignalThread signals;
    models::EnterInvocationFolder();
    models::RunConfig config;
    models::Options options(
        {.name = "train_gpt",
         .summary =
             "Trains a GPT from scratch, on your text or on the embedded one; with --nproc=N in N "
             "processes on this machine.",
         .example = "train_gpt --data.path=input.txt --model.preset=shakespeare-char-cpu"});
    models::AddRunOptions(options, config);
    bool dry_run = false;
    options.AddFlag("dry_run", &dry_run, "only print what would be trained");
    if (const auto exit_code = options.Start(argc, argv)) return *exit_code;
    return models::TrainGpt(options, config, dry_run);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    dist::TellLauncher(e);
    std::fprintf(stderr, "train_gpt: %s\n", e.what());
    return 1;
  }
}
