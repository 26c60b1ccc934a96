// Process groups for GPUs, over NCCL; in a simulated build, for simulated GPUs.
#pragma once

#include <memory>

#include "dist/control/control_plane.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// A group of all ranks, for tensors on options.device. Collective. Every rank needs its own device.
// Split makes groups of some of them, by ncclCommSplit where the library has it.
//
// Operations run on a stream of the group. NCCL itself compares nothing: ranks that call different
// things hang or get wrong numbers. So each rank keeps a hash of its calls, which CheckInStep
// compares along the control plane's tree; with options.check_every_call each call is compared
// before it starts. A thread of the process watches all groups for operations that exceed the
// timeout, for NCCL's asynchronous errors and for other ranks' failures; it then aborts all
// communicators, and the error says how far each rank has got.
//
// Calls can be captured into CUDA graphs; they are compared when they are captured.
std::shared_ptr<ProcessGroup> MakeNcclGroup(std::shared_ptr<ControlPlane> control,
                                            const GroupOptions& options);

}  // namespace lockstep::dist
