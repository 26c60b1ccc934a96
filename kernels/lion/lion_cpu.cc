#include "kernels/lion/lion_math.h"
#include "kernels/update_cpu.h"

namespace lockstep::cpu {
namespace {

constexpr auto Update = UpdateAll<LionRule>;
LS_REGISTER(lion_update, DeviceType::kCpu, Update);

}  // namespace
}  // namespace lockstep::cpu
