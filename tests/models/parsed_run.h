// A configuration as train_gpt reads it from its command line.
#pragma once

#include <string>
#include <vector>

#include "models/options/config.h"
#include "tests/message_of.h"

namespace lockstep::models {

struct ParsedRun {
  // InputError.
  explicit ParsedRun(const std::vector<std::string>& arguments) {
    AddRunOptions(options, config);
    options.Parse(arguments);
  }
  RunConfig config;
  Options options{{.name = "train_gpt", .summary = "trains a GPT"}};
};

// The error for bad arguments, or "no error".
inline std::string ErrorOf(const std::vector<std::string>& arguments) {
  return test::MessageOf<InputError>([&] { ParsedRun run(arguments); });
}

}  // namespace lockstep::models
