// The device and the threads of a rank.
#pragma once

#include <string>

#include "core/device.h"
#include "core/system/environment.h"
#include "dist/control/rendezvous.h"

namespace lockstep::dist {

// The device of this rank: of the kind that `device` names (core/cuda/device.h), with GpuOfRank as
// the index of a GPU. It becomes this thread's. InputError if `device` names one GPU for several
// ranks.
Device DeviceOfRank(const std::string& device, const Rendezvous& rendezvous);

// The GPU of this rank among the `visible` ones: that with its local rank, or, where a scheduler
// shows each rank only its own, as srun --gpus-per-task does, one of these. InputError if the
// machine has too few.
int GpuOfRank(const Rendezvous& rendezvous, int visible,
              const Environment& environment = ProcessEnvironment());

// The CPU threads of this rank, which may use `usable` processors: all of them if they are its own,
// but no more than its share of those that its machine's ranks have together, by default
// `of_machine`.
int ThreadsOfRank(const Rendezvous& rendezvous, int usable, int of_machine);

}  // namespace lockstep::dist
