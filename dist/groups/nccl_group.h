// Process groups of GPUs, by NCCL; in a simulated build, of simulated GPUs.
#pragma once

#include <memory>

#include "dist/control/store.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Collective. `control` is a group of the same ranks on the host, for NCCL's id and for comparing
// calls; the new group keeps it, and nobody else uses it. Every rank has a device of its own.
//
// Operations run on a stream of the group. NCCL itself compares nothing: ranks that call different
// things hang or get wrong numbers. So each rank keeps a hash of its calls, which CheckInStep
// compares; with options.check_every_call each call is compared before it starts. A thread looks
// for operations that outlast the timeout, for NCCL's asynchronous errors and for other ranks'
// failures; it ends the communicator then, and the error says how far each rank has come.
//
// Calls can be captured into CUDA graphs; they are compared as they are captured.
std::shared_ptr<ProcessGroup> MakeNcclGroup(std::shared_ptr<ProcessGroup> control, Store& store,
                                            Device device, const GroupOptions& options);

}  // namespace lockstep::dist
