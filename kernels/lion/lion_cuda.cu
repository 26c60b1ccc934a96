#include "kernels/cuda/update.cuh"
#include "kernels/lion/lion_math.h"

namespace lockstep::cuda {
namespace {

constexpr auto Update = UpdateAll<LionRule>;
LS_REGISTER(lion_update, DeviceType::kCuda, Update);

}  // namespace
}  // namespace lockstep::cuda
