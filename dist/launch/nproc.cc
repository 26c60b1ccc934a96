#include "dist/launch/nproc.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <thread>

#include "core/cuda/device.h"
#include "core/error.h"
#include "core/io/file.h"
#include "core/system/environment.h"

namespace lockstep::dist {
namespace {

// Whether ParseLaunchOptions takes it, and no program does.
bool IsOptionOfLauncher(const std::string& argument) {
  constexpr std::string_view kOnly[] = {"__max_restarts", "__restart_nproc", "__log_dir",
                                        "__grace",        "__nnodes",        "__node_rank",
                                        "__rdzv",         "__rdzv_endpoint"};
  std::string name = argument.substr(0, argument.find('='));
  std::ranges::replace(name, '-', '_');
  return std::ranges::find(kOnly, name) != std::end(kOnly);
}

int RealGpus() { return cuda::kSimulated ? 0 : cuda::DeviceCount(); }

}  // namespace

int ReadWhole(const std::string& what, const std::string& text, int least) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || at != end || value < least) {
    throw InputError(StrCat(what, " is '", text, "'; it must be a whole number, at least ", least));
  }
  return value;
}

int ReadNproc(const std::string& text) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (text == "cpu") return cores;
  if (text == "auto") return std::max(1, RealGpus());
  if (text == "gpu") {
    if (RealGpus() > 0) return RealGpus();
    throw InputError(
        StrCat("--nproc=gpu: there is no GPU", cuda::kSimulated ? " in a simulated build" : "",
               "; give a number, and pass --device=sim to the program for simulated GPUs"));
  }
  try {
    return ReadWhole("--nproc", text, 1);
  } catch (const InputError& e) {
    throw InputError(StrCat(e.what(), ", or auto, gpu or cpu"));
  }
}

std::optional<int> LaunchIfAsked(int argc, char** argv, LaunchOptions options) {
  constexpr std::string_view kOption = "--nproc=";
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
  for (const std::string& argument : options.command) {
    if (IsOptionOfLauncher(argument)) {
      throw InputError(StrCat(argument, " is an option of the launcher: launch ", kOption,
                              nproc.value_or("N"), " ", argument, " -- ", BaseName(argv[0]),
                              " ..."));
    }
  }
  if (!nproc) return {};
  if (EnvironmentVariable("RANK")) {
    throw InputError(StrCat(kOption, *nproc,
                            " starts ranks, but by the environment variable RANK this process "
                            "already is one: leave the option out"));
  }
  options.nproc = ReadNproc(*nproc);
  return Launch(options);
}

}  // namespace lockstep::dist
