// Any TOML text is either a configuration, which survives being written and read again, or an
// InputError. What follows a NUL is taken for arguments, one after each further NUL.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "models/config.h"

namespace {

using lockstep::InputError;
using lockstep::models::AddRunOptions;
using lockstep::models::Difference;
using lockstep::models::Options;
using lockstep::models::RunConfig;
using lockstep::models::RunConfigFromToml;

// A configuration that was accepted must be accepted again from its dump, unchanged.
void CheckRoundTrip(const Options& options, const RunConfig& config) {
  if (!Difference(config, RunConfigFromToml(options.Dump(), "dump")).empty()) std::abort();
}

void FuzzToml(std::string_view text) {
  RunConfig config;
  Options options({.name = "train_gpt", .summary = ""});
  AddRunOptions(options, config);
  try {
    options.ParseToml(text, "fuzz.toml");
  } catch (const InputError&) {
    return;
  }
  CheckRoundTrip(options, config);
}

void FuzzArguments(std::string_view text) {
  std::vector<std::string> arguments;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    // No files: what they hold is not the input's.
    if (end > begin && text[begin] == '-') arguments.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  RunConfig config;
  Options options({.name = "train_gpt", .summary = "", .takes_file = false});
  AddRunOptions(options, config);
  try {
    options.Parse(arguments);
  } catch (const InputError&) {
    return;
  }
  if (!options.help() && !options.version()) CheckRoundTrip(options, config);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t nul = text.find('\0');
  FuzzToml(text.substr(0, nul));
  if (nul != std::string_view::npos) FuzzArguments(text.substr(nul + 1));
  return 0;
}
