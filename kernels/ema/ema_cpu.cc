#include "kernels/cpu/update.h"
#include "kernels/ema/ema_math.h"

namespace lockstep::cpu {
namespace {

constexpr auto Update = UpdateAll<EmaRule>;
LS_REGISTER(ema_update, DeviceType::kCpu, Update);

}  // namespace
}  // namespace lockstep::cpu
