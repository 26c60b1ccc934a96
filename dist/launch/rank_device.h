// The device of a rank.
#pragma once

#include <string>

#include "core/device.h"
#include "dist/control/rendezvous.h"

namespace lockstep::dist {

// The device of this rank: of the kind that `device` names (core/cuda/device.h), with the local
// rank as the index of a GPU, or the only GPU that CUDA_VISIBLE_DEVICES shows. It becomes this
// thread's. InputError if `device` names one GPU for several ranks.
Device DeviceOfRank(const std::string& device, const Rendezvous& rendezvous);

}  // namespace lockstep::dist
