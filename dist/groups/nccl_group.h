// Process groups for GPUs, real or simulated, over NCCL.
#pragma once

#include <memory>
#include <vector>

#include "dist/control/control_plane.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// A process's groups on its GPU. They share a thread that watches them, and a communicator of all
// ranks, from which those of the groups are split (by ncclCommSplit where the library has it).
class NcclGroups {
 public:
  virtual ~NcclGroups() = default;
  virtual Device device() const = 0;
  // The group of these ranks (ascending, with this one), for tensors on device(). Collective over
  // all ranks: each makes the group that it is in, with a device of its own.
  //
  // Operations run on a stream of the group. NCCL itself compares nothing: ranks that call
  // different things hang or get wrong numbers. So each rank keeps a hash of its calls, which
  // CheckInStep compares along the control plane's tree; with options.check_every_call each call is
  // compared before it starts. A thread of the process watches all groups for operations that
  // exceed the timeout, for NCCL's asynchronous errors and for other ranks' failures; it then
  // aborts all communicators, and the error says how far each rank has got.
  //
  // Calls can be captured into CUDA graphs; they are compared when they are captured.
  virtual std::shared_ptr<ProcessGroup> Make(std::vector<int> members,
                                             const GroupOptions& options) = 0;
};

// Its destructor waits until all ranks have called theirs, or the run has failed, at most for 30 s.
std::unique_ptr<NcclGroups> MakeNcclGroups(std::shared_ptr<ControlPlane> control, Device device);

// A group of all ranks that shares nothing with others but those that are split from it.
std::shared_ptr<ProcessGroup> MakeNcclGroup(std::shared_ptr<ControlPlane> control,
                                            const GroupOptions& options);

}  // namespace lockstep::dist
