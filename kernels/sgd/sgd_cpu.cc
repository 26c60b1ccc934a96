#include "kernels/cpu/update.h"
#include "kernels/sgd/sgd_math.h"

namespace lockstep::cpu {
namespace {

void Update(Stream stream, std::span<const UpdateTensors> tensors, const SgdHyper& hyper,
            const StepValues* values) {
  const auto update = hyper.momentum == 0 ? UpdateAll<SgdRule> : UpdateAll<SgdMomentumRule>;
  update(stream, tensors, hyper, values);
}

LS_REGISTER(sgd_update, DeviceType::kCpu, Update);

}  // namespace
}  // namespace lockstep::cpu
