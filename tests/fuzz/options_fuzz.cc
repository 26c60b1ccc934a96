// Any TOML text is either a configuration, which survives being written and read again, or an
// InputError. What follows a NUL is taken as arguments, one after each further NUL.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "models/options/config.h"

namespace {

using lockstep::InputError;
using lockstep::models::AddRunOptions;
using lockstep::models::Difference;
using lockstep::models::Options;
using lockstep::models::RunConfig;

// Made once: registering is most of the time, and parsing starts from the defaults every time.
struct Run {
  RunConfig config;
  Options options{{.name = "train_gpt", .summary = "", .takes_file = false}};
  Run() { AddRunOptions(options, config); }
};

// A configuration that was accepted must be accepted again from its dump, unchanged.
void CheckRoundTrip(const Options& options) {
  static Run again;
  again.options.ParseToml(options.Dump(), "dump");
  if (!Difference(options, again.options).empty()) std::abort();
}

void FuzzToml(std::string_view text) {
  static Run run;
  try {
    run.options.ParseToml(text, "fuzz.toml");
  } catch (const InputError&) {
    return;
  }
  CheckRoundTrip(run.options);
}

void FuzzArguments(std::string_view text) {
  static Run run;
  std::vector<std::string> arguments;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    if (end > begin) arguments.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  try {
    run.options.Parse(arguments);
  } catch (const InputError&) {
    return;
  }
  if (!run.options.help() && !run.options.version()) CheckRoundTrip(run.options);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t nul = text.find('\0');
  FuzzToml(text.substr(0, nul));
  if (nul != std::string_view::npos) FuzzArguments(text.substr(nul + 1));
  return 0;
}
