#include "kernels/cpu/update.h"
#include "kernels/lion/lion_math.h"

namespace lockstep::cpu {
namespace {

constexpr auto Update = UpdateAll<LionRule>;
LS_REGISTER(lion_update, DeviceType::kCpu, Update);

}  // namespace
}  // namespace lockstep::cpu
