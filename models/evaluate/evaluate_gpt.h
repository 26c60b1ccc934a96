// evaluate: how well a model answers the questions of tasks, and how well it predicts texts.
#pragma once

#include <cstdint>
#include <string>

#include "models/options/options.h"
#include "models/sample/opened_model.h"

namespace lockstep::models {

struct EvaluateConfig : ModelSource {
  std::string tasks;
  std::string data = "evals";
  TextList text;
  int64_t shots = -1;
  int64_t limit = 0;
  int64_t batch_size = 16;
  int64_t tp = 1, virtual_tp = 0;
  std::string json;
};

void AddEvaluateOptions(Options& options, EvaluateConfig& config);

// Prints a table to stdout and progress to stderr. Returns the exit code. Throws InputError.
//
// Started as several ranks (ReadRendezvous), each `tp` of them have a model together, and these
// groups divide the questions; the first rank prints. On the CPU, figures have the same bits for
// any number of ranks with the same virtual_tp.
int EvaluateGpt(const EvaluateConfig& config);

}  // namespace lockstep::models
