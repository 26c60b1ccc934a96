// What a loop on several ranks forgets, named with the line to write.
#pragma once

#include <cstdint>
#include <string>

#include "core/autograd/engine.h"
#include "core/parameter.h"

namespace lockstep::dist {

// The line that tells a Reducer of micro-batches, for errors.
inline constexpr char kBeginMicroBatch[] =
    "before the backward of each micro-batch, write\n"
    "  parallel.BeginMicroBatch(/*last=*/micro == parallel.micro_order().back());\n"
    "which parallel.Backward does by itself; and say how many micro-batches a step has on all "
    "ranks together: DataParallel parallel(group, model, {.micro_batches = ...})";

// Called as a backward begins: refuses what is right in one process but silently wrong where the
// gradients of several ranks are summed: a loss that nothing divides by the samples of all, and the
// same dropout masks on all. `is_first`: of the first step, in which root gradients are read from
// the device. Throws ArgumentError.
void CheckShares(const BackwardPlan& plan, int rank, int64_t ranks, bool is_first);
// Throws ArgumentError, since a parameter has a gradient as a step begins: ZeroGrad was forgotten,
// or this is a further micro-batch of the step. `how` says how a loop tells of these.
[[noreturn]] void ThrowHasGradient(const Parameter& parameter, const std::string& how);
// Throws ArgumentError where a parameter is not as trainable as it was when `what` was made.
void CheckTrainable(const Parameter& parameter, bool was_trainable, const char* what);

}  // namespace lockstep::dist
