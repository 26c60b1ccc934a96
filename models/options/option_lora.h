// Low-rank adapters: what lora.* says of them.
#pragma once

#include <cstdint>
#include <string>

#include "models/options/options.h"

namespace lockstep::models {

struct LoraOptions {
  int64_t rank = 0;  // 0: no adapters, and what follows does nothing
  double alpha = 16;
  double dropout = 0;
  std::string targets = "all";  // models/gpt/lora_targets.h
  bool rank_stabilized = false;
  std::string init_from;  // a folder of adapters to continue, which decides all but the dropout
  std::string base = "model";  // storage of the frozen matrices: model, nf4 or nf4_single

  bool quantizes() const { return base != "model" && (rank > 0 || !init_from.empty()); }

  bool operator==(const LoraOptions&) const = default;
};

void AddLoraOptions(Options& options, LoraOptions& lora);

// Fails for options that have no effect.
void CheckLora(const Options& options, const LoraOptions& lora);

}  // namespace lockstep::models
