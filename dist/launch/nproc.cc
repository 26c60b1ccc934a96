#include "dist/launch/nproc.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "core/cuda/device.h"
#include "core/error.h"
#include "core/io/file.h"
#include "core/system/environment.h"
#include "core/system/processors.h"

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

int RealGpus() { return cuda::Simulated() ? 0 : cuda::DeviceCount(); }

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
  if (text == "cpu") return UsableProcessors();
  if (text == "auto") return std::max(1, RealGpus());
  if (text == "gpu") {
    if (RealGpus() > 0) return RealGpus();
    throw InputError(
        StrCat("--nproc=gpu: there is no GPU", cuda::Simulated() ? " that is not simulated" : "",
               "; give a number, and pass --device=sim to the program for simulated GPUs"));
  }
  // More than any machine has use for, and few enough for its process table.
  constexpr int kMost = 4096;
  try {
    const int ranks = ReadWhole("--nproc", text, 1);
    if (ranks <= kMost) return ranks;
    throw InputError(StrCat("--nproc is ", ranks, "; a machine takes at most ", kMost, " ranks"));
  } catch (const InputError& e) {
    throw InputError(StrCat(e.what(), ", or auto, gpu or cpu"));
  }
}

std::vector<std::string> TakeOption(const std::string& option, const std::string& example,
                                    std::vector<std::string>* arguments) {
  std::vector<std::string> values, others;
  for (auto it = arguments->begin(); it != arguments->end(); ++it) {
    if (it->starts_with(option + "=")) {
      values.push_back(it->substr(option.size() + 1));
    } else if (*it != option) {
      others.push_back(std::move(*it));
    } else if (++it != arguments->end()) {
      values.push_back(std::move(*it));
    } else {
      throw InputError(StrCat(option, " needs a value: write ", example));
    }
  }
  *arguments = std::move(others);
  return values;
}

std::optional<int> TakeNproc(const std::string& program, std::vector<std::string>* arguments) {
  const auto nprocs = TakeOption("--nproc", "--nproc=2, or auto, gpu or cpu", arguments);
  const std::string nproc = nprocs.empty() ? "N" : nprocs.back();
  for (const std::string& argument : *arguments) {
    if (IsOptionOfLauncher(argument)) {
      throw InputError(StrCat(argument, " is an option of the launcher: launch --nproc=", nproc,
                              " ", argument, " -- ", program, " ..."));
    }
  }
  if (nprocs.empty()) return {};
  if (EnvironmentVariable("RANK")) {
    throw InputError(StrCat("--nproc=", nproc,
                            " starts ranks, but by the environment variable RANK this process "
                            "already is one: leave the option out"));
  }
  return ReadNproc(nproc);
}

}  // namespace lockstep::dist
