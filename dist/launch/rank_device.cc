#include "dist/launch/rank_device.h"

#include <algorithm>

#include "core/cuda/device.h"
#include "core/error.h"

namespace lockstep::dist {

Device DeviceOfRank(const std::string& device, const Rendezvous& rendezvous) {
  if (rendezvous.world_size == 1) return cuda::ParseDevice(device);
  if (device.find(':') != std::string::npos) {
    throw InputError(StrCat("device = ", device, " is one device for ", rendezvous.world_size,
                            " ranks: use device = ", device.substr(0, device.find(':')),
                            ", and each rank takes the GPU with its local rank"));
  }
  const Device first = cuda::ParseDevice(device);
  if (!first.is_cuda()) return first;
  const Device own{first.type, GpuOfRank(rendezvous, cuda::DeviceCount())};
  cuda::SetDevice(own);
  return own;
}

int GpuOfRank(const Rendezvous& rendezvous, int visible, const Environment& environment) {
  if (rendezvous.local_rank < visible) return rendezvous.local_rank;
  // Numbered from 0 in each task. A rank that sees one GPU has it by whatever hides the others.
  const bool sees_own = Lookup(environment, "SLURM_GPUS_PER_TASK") ||
                        (visible == 1 && Lookup(environment, "CUDA_VISIBLE_DEVICES"));
  if (sees_own && visible > 0) return rendezvous.local_rank % visible;
  throw InputError(StrCat("rank ", rendezvous.rank, " has local rank ", rendezvous.local_rank,
                          ", but its machine has ", visible,
                          " GPUs: start at most one rank per GPU"));
}

int ThreadsOfRank(const Rendezvous& rendezvous, int usable, int of_machine) {
  const int together = rendezvous.processors > 0 ? rendezvous.processors : of_machine;
  return std::max(1, std::min(usable, together / std::max(1, rendezvous.local_world_size)));
}

}  // namespace lockstep::dist
