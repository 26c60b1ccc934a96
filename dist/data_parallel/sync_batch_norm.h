// Batch normalisation over the batch of all ranks.
#pragma once

#include <string>

#include "core/module.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Makes every nn::BatchNorm in `module` compute statistics over all ranks' batches together,
// forward and backward, as one process with the whole batch would (kernels/batch_norm/batch_norm.h
// says when to the bit). Returns the number of these layers. All ranks must run them in the same
// order. Parameters, buffers and their names are unchanged.
//
// Collective: creates a separate group, named `name`, because backward exchanges statistics while
// gradients are being summed.
int64_t ConvertSyncBatchNorm(Module& module, ProcessGroup& group,
                             const std::string& name = "batch_norm");

}  // namespace lockstep::dist
