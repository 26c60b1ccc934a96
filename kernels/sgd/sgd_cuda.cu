#include "kernels/cuda/update.cuh"
#include "kernels/sgd/sgd_math.h"

namespace lockstep::cuda {
namespace {

void Update(Stream stream, std::span<const UpdateTensors> tensors, const SgdHyper& hyper,
            const StepValues* values) {
  const auto update = hyper.momentum == 0 ? UpdateAll<SgdRule> : UpdateAll<SgdMomentumRule>;
  update(stream, tensors, hyper, values);
}

LS_REGISTER(sgd_update, DeviceType::kCuda, Update);

}  // namespace
}  // namespace lockstep::cuda
