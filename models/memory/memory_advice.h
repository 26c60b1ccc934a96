// What to change in a plan, as where a run needs more memory than there is.
#pragma once

#include <string>
#include <vector>

#include "models/memory/memory_plan.h"
#include "models/report/format.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

// Settles again what follows from options in setup.config that were changed: what the model
// recomputes and offloads, and the chunks of its loss. Throws InputError.
void SettlePlan(RunSetup& setup);

// "--train.batch_size=1 --parallel.shard=full": the options that make `after` of `before`, except
// train.loss_chunk, which the run settles by the batch.
std::string ArgumentsOf(const RunConfig& before, const RunConfig& after);

// What an advice is to reach.
struct MemoryAim {
  MemoryFits fits;       // judges the plan of a rank
  std::string but = "";  // what an item says after its memory, if it reaches no more than this
};
inline constexpr char kFitsClosely[] =
    "so closely that the allocator, which rounds sizes up, may not find room";

// "What would fit: --train.recompute=block (61.2 GiB; 1.25 to 1.33 times the arithmetic); ...": of
// each kind of change (steps without CUDA graphs, a smaller micro-batch at the same global batch,
// recomputation, offload of optimizer state, weights or activations, sharding among the ranks) the
// cheapest that is enough by itself, or else the cheapest combination of them. Where that is not
// enough, either, together with as few more GPUs as possible, and with 16 bits throughout. Each was
// planned. Enough is the first of the `aims` that anything reaches. If nothing reaches any, which
// part of the model to shrink. Makes some dozens of plans, but no more after this many seconds of
// the process's CPU time; it then says so.
std::string MemoryAdvice(const RunSetup& setup, const std::vector<MemoryAim>& aims,
                         ByteFormat format = FormatBytes, double seconds = 60);

}  // namespace lockstep::models
