#include "dist/launch/rank_device.h"

#include "core/cuda/device.h"
#include "core/error.h"
#include "core/system/environment.h"

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
  // With srun --gpus-per-task=1 each rank sees only its own device.
  const bool sees_own =
      cuda::DeviceCount() == 1 && EnvironmentVariable("CUDA_VISIBLE_DEVICES").has_value();
  const int index = sees_own ? 0 : rendezvous.local_rank;
  if (index >= cuda::DeviceCount()) {
    throw InputError(StrCat("rank ", rendezvous.rank, " has local rank ", rendezvous.local_rank,
                            ", but its machine has ", cuda::DeviceCount(),
                            " GPUs: start at most one rank per GPU"));
  }
  const Device own{first.type, index};
  cuda::SetDevice(own);
  return own;
}

}  // namespace lockstep::dist
