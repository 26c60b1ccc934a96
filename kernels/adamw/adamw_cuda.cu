#include "kernels/adamw/adamw_math.h"
#include "kernels/cuda/update.cuh"

namespace lockstep::cuda {
namespace {

constexpr auto Update = UpdateAll<AdamWRule>;
LS_REGISTER(adamw_update, DeviceType::kCuda, Update);

}  // namespace
}  // namespace lockstep::cuda
