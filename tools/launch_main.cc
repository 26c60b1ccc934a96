// bazel run -c opt //tools:launch -- --nproc=4 -- train_gpt config.toml ...
// bazel run -c opt //tools:launch -- --nproc=4 --check
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "core/error.h"
#include "core/io/file.h"
#include "dist/launch/launch.h"
#include "dist/launch/launch_options.h"
#include "dist/launch/rank_device.h"
#include "dist/preflight/preflight.h"
#include "models/options/invocation.h"

namespace {

// Finds a program of Lockstep that is named without a path: beside this one in a bundle, or where
// Bazel puts it.
std::string FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const auto& folder : {here, here / "../models"}) {
    if (lockstep::PathExists(folder / name)) return folder / name;
  }
  return name;
}

// A rank of `launch --check`.
int CheckRank(const std::string& device) {
  using namespace lockstep;
  try {
    const dist::Rendezvous rendezvous = dist::ReadRendezvous();
    dist::RunPreflight(rendezvous, dist::DeviceOfRank(device, rendezvous), std::cout);
    return 0;
  } catch (const std::exception& e) {
    // All ranks find the same, and the launcher says it once.
    if (!dist::TellLauncher(e)) std::fprintf(stderr, "launch: %s\n", e.what());
    std::cout.flush();
    std::_Exit(ExitCodeOf(e));  // the end of CUDA would wait for a GPU that does not answer
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    models::EnterInvocationFolder();
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (const auto device = dist::DeviceToCheck(arguments)) return CheckRank(*device);
    std::string help;
    auto options = dist::ParseLaunchOptions(arguments, &help);
    if (!options) {
      std::fputs(help.c_str(), stdout);
      return 0;
    }
    if (!options->command.empty()) options->command[0] = FindProgram(options->command[0]);
    return dist::Launch(*options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "launch: %s\n", e.what());
    return ExitCodeOf(e);
  }
}
