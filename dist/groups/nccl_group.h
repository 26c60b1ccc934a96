// Process groups for GPUs, over NCCL; in a simulated build, for simulated GPUs.
#pragma once

#include <memory>

#include "dist/process_group.h"

namespace lockstep::dist {

// Collective. `host` is a host group of the same ranks, for sharing NCCL's id and comparing
// calls; the new group keeps it, and nothing else may use it. Every rank needs its own device.
//
// Operations run on a stream of the group. NCCL itself compares nothing: ranks that call different
// things hang or get wrong numbers. So each rank keeps a hash of its calls, which CheckInStep
// compares; with options.check_every_call each call is compared before it starts. A thread watches
// for operations that exceed the timeout, for NCCL's asynchronous errors and for other ranks'
// failures; it then aborts the communicator, and the error says how far each rank has got.
//
// Calls can be captured into CUDA graphs; they are compared when they are captured.
std::shared_ptr<ProcessGroup> MakeNcclGroup(std::shared_ptr<ProcessGroup> host, Device device,
                                            const GroupOptions& options);

}  // namespace lockstep::dist
