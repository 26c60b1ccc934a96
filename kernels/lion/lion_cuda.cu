#include "kernels/cuda/multi_tensor.cuh"
#include "kernels/lion/lion_math.h"

namespace lockstep::cuda {
namespace {

struct LionRule {
  using Hyper = LionHyper;
  using Coefficients = LionCoefficients<float>;
  static constexpr int kStates = 1;
  static __device__ void Element(const Coefficients& c, float grad, float& p, float* states) {
    LionElement(c, grad, p, states[0]);
  }
};

void LionUpdateCuda(Stream stream, std::span<const LionTensors> tensors, const LionHyper& hyper,
                    const StepValues* values) {
  UpdateAll<LionRule>("lion_update", stream, tensors, hyper, values,
                      [](const LionTensors& t, int) { return t.exp_avg; });
}

LS_REGISTER(lion_update, DeviceType::kCuda, LionUpdateCuda);

}  // namespace
}  // namespace lockstep::cuda
