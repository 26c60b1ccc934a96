// train.recompute = auto: as little recomputation as makes a run fit in memory.
#pragma once

#include <string>
#include <vector>

#include "dist/process_group.h"
#include "models/memory/memory_plan.h"

namespace lockstep::models {

// What a search tries beside none, from what costs least time on: the model's activations and norms
// ("swiglu,rms_norm"), "mlp", "block".
std::vector<std::string> RecomputeLadder(const GptConfig& model);

// Settles setup.model.recompute, and config.train.recompute, if it is automatic, and returns the
// plan of what it then is: nothing, or the blocks of as few first layers as `fits`, or those with
// the lowest peak if nothing does. The first layers, because their backward comes last, when what
// the others kept is free again.
MemoryPlan SettleRecompute(RunSetup& setup, const MemoryFits& fits);

// Collective over `group`, which may be null. Settles an automatic choice, for which each rank may
// have found another answer, on the most layers that any rank needs, and returns the plan of that:
// ranks of a sharded model gather each block as often as it is recomputed.
MemoryPlan AgreeOnRecompute(RunSetup& setup, const MemoryPlan& mine, dist::ProcessGroup* group);

}  // namespace lockstep::models
