#include "kernels/adamw/adamw_math.h"
#include "kernels/cpu/update.h"

namespace lockstep::cpu {
namespace {

constexpr auto Update = UpdateAll<AdamWRule>;
LS_REGISTER(adamw_update, DeviceType::kCpu, Update);

}  // namespace
}  // namespace lockstep::cpu
