// Batch normalisation over the batch of all ranks.
#pragma once

#include <memory>
#include <string>

#include "core/module.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// From now on every nn::BatchNorm below `module` (and itself) computes the statistics of all ranks'
// batches together, forward and backward, as one process with the whole batch does
// (kernels/batch_norm/batch_norm.h says when to the bit). Returns how many there are. All ranks
// must run these layers in the same order. Parameters, buffers and their names stay.
//
// Collective: makes a group of its own, named `name`, because backward exchanges statistics while
// gradients are being summed.
int64_t ConvertSyncBatchNorm(Module& module, ProcessGroup& group,
                             const std::string& name = "batch_norm");

}  // namespace lockstep::dist
