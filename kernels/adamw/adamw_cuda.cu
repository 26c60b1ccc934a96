#include "kernels/adamw/adamw_math.h"
#include "kernels/cuda/multi_tensor.cuh"

namespace lockstep::cuda {
namespace {

struct AdamWRule {
  using Hyper = AdamWHyper;
  using Coefficients = AdamWCoefficients<float>;
  static constexpr int kStates = 2;
  static __device__ void Element(const Coefficients& c, float grad, float& p, float* states) {
    AdamWElement(c, grad, p, states[0], states[1]);
  }
};

void AdamWUpdateCuda(Stream stream, std::span<const AdamWTensors> tensors, const AdamWHyper& hyper,
                     const StepValues* values) {
  UpdateAll<AdamWRule>(
      "adamw_update", stream, tensors, hyper, values,
      [](const AdamWTensors& t, int k) { return k == 0 ? t.exp_avg : t.exp_avg_sq; });
}

LS_REGISTER(adamw_update, DeviceType::kCuda, AdamWUpdateCuda);

}  // namespace
}  // namespace lockstep::cuda
