#include "core/step_state.h"

#include <cmath>
#include <cstring>

namespace lockstep {
namespace {
thread_local const StepState* current_state = nullptr;
}

StepState::StepState(Device device, uint64_t seed)
    : seed_(seed), values_(Tensor::Zeros({sizeof(StepValues)}, DType::kU8, device)) {
  host_.seed = seed;
  Upload(host_);
}

StepValues* StepState::device_values() const {
  return static_cast<StepValues*>(values_.raw_data());
}

void StepState::Begin(int64_t step, double lr, double beta1, double beta2, double loss_scale) {
  host_ = StepValues();
  host_.step = step;
  host_.seed = seed_;
  host_.lr = static_cast<float>(lr);
  // -expm1(n log b) keeps full precision where b is close to 1. b = 0 gives 1.
  const auto correction = [step](double beta) {
    return static_cast<float>(-std::expm1(static_cast<double>(step + 1) * std::log(beta)));
  };
  host_.beta1_correction = correction(beta1);
  host_.beta2_correction = correction(beta2);
  host_.loss_scale = static_cast<float>(loss_scale);
  Upload(host_);
}

void StepState::SetFirstSample(int64_t index) {
  host_.first_sample = index;
  if (values_.device().is_meta()) return;
  // Only this field: kernels of the step may already have written the others.
  const Tensor field = Tensor::FromStorage(values_.storage(), DType::kI64, {1},
                                           offsetof(StepValues, first_sample) / sizeof(int64_t));
  field.CopyFrom(Tensor::FromVector<int64_t>({index}, {1}));
}

StepValues StepState::Read() const {
  HostRead read = ReadLater();
  return ToStepValues(read);
}

StepValues ToStepValues(HostRead& read) {
  StepValues out;
  std::memcpy(&out, read.Get().raw_data(), sizeof(out));
  return out;
}

void StepState::Upload(const StepValues& values) {
  const auto bytes = std::as_bytes(std::span(&values, 1));
  if (!values_.device().is_meta()) {
    values_.CopyFrom(Tensor::FromBytes(bytes, values_.shape(), DType::kU8));
  }
}

const StepState* CurrentStepState() { return current_state; }
TrainingScope::TrainingScope(const StepState& state) : previous_(current_state) {
  current_state = &state;
}
TrainingScope::~TrainingScope() { current_state = previous_; }

}  // namespace lockstep
