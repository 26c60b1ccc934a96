#include "kernels/cuda/update.cuh"
#include "kernels/ema/ema_math.h"

namespace lockstep::cuda {
namespace {

constexpr auto Update = UpdateAll<EmaRule>;
LS_REGISTER(ema_update, DeviceType::kCuda, Update);

}  // namespace
}  // namespace lockstep::cuda
