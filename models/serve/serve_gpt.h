// serve: a small HTTP server to try a model with.
#pragma once

#include <cstdint>
#include <string>

#include "models/options/options.h"
#include "models/sample/opened_model.h"

namespace lockstep::models {

struct ServeConfig : ModelSource {
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  int64_t max_batch = 16;
  int64_t context = 0;
  std::string chat_template;
};

void AddServeOptions(Options& options, ServeConfig& config);

// Serves until one of the signals of SignalThread, then returns the exit code. Prints its address
// to stdout once it answers. Throws InputError.
int ServeGpt(const ServeConfig& config);

}  // namespace lockstep::models
