#include "kernels/cuda/multi_tensor.cuh"
#include "kernels/sgd/sgd_math.h"

namespace lockstep::cuda {
namespace {

struct SgdRule {
  using Hyper = SgdHyper;
  using Coefficients = SgdCoefficients<float>;
  static constexpr int kStates = 0;
  static __device__ void Element(const Coefficients& c, float grad, float& p, float*) {
    SgdElement(c, grad, p);
  }
};

struct SgdMomentumRule {
  using Hyper = SgdHyper;
  using Coefficients = SgdCoefficients<float>;
  static constexpr int kStates = 1;
  static __device__ void Element(const Coefficients& c, float grad, float& p, float* states) {
    SgdMomentumElement(c, grad, p, states[0]);
  }
};

void SgdUpdateCuda(Stream stream, std::span<const SgdTensors> tensors, const SgdHyper& hyper,
                   const StepValues* values) {
  const auto momentum = [](const SgdTensors& t, int) { return t.momentum; };
  if (hyper.momentum == 0) {
    UpdateAll<SgdRule>("sgd_update", stream, tensors, hyper, values, momentum);
  } else {
    UpdateAll<SgdMomentumRule>("sgd_update", stream, tensors, hyper, values, momentum);
  }
}

LS_REGISTER(sgd_update, DeviceType::kCuda, SgdUpdateCuda);

}  // namespace
}  // namespace lockstep::cuda
