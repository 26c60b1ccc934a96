// Options that say how a model is divided among ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "models/options/options.h"

namespace lockstep::models {

// option_parallel.cc says what each means, for --help.
struct ParallelOptions {
  int64_t tp = 1;
  int64_t virtual_tp = 0;  // 0: tp. virtual.tp
  int64_t cp = 1;
  int64_t virtual_cp = 0;  // 0: cp. virtual.cp
  int64_t pp = 1;
  std::string schedule = "1f1b";
  int64_t ep = 1;
  std::string shard = "none";
  int64_t shard_ranks = 0;  // 0: all
  bool reshard_after_forward = true;

  // The parts in which sums that are split across tp are made.
  int64_t tensor_parts() const { return virtual_tp > 0 ? virtual_tp : tp; }
  // The pairs of chunks into which sequences are cut; 1: they are not.
  int64_t context_pairs() const { return virtual_cp > 0 ? virtual_cp : cp; }
  // Across how many neighbouring data ranks, with the ranks that compute the same sequences as each
  // of them, the experts are split. 1: only across the latter.
  int64_t data_ranks_of_experts() const { return std::max<int64_t>(1, ep / cp); }
};

// Adds parallel.* and virtual.*; plan_rules.h says what goes together.
void AddParallelOptions(Options& options, ParallelOptions& parallel);

}  // namespace lockstep::models
