// What changes from step to step and kernels read by pointer, so that a captured CUDA graph stays
// right. Usable from .cu files.
#pragma once

#include <cstdint>

#include "core/host_read.h"
#include "core/tensor.h"

namespace lockstep {

// Lives on the device.
struct StepValues {
  int64_t step = 0;          // 0-based number of the optimizer step
  uint64_t seed = 0;         // key of all random numbers
  int64_t first_sample = 0;  // global index of the micro-batch's first sample within the step
  float lr = 0;
  float beta1_correction = 1;  // 1 - beta1^(step + 1)
  float beta2_correction = 1;  // 1 - beta2^(step + 1)
  float loss_scale = 1;        // gradients come multiplied by it
  float clip_factor = 1;  // min(1, clip / norm): updates use gradient * clip_factor / loss_scale
  float grad_norm = 0;    // of the unscaled gradient, before clipping
  int32_t found_inf = 0;  // nonzero: a gradient is NaN or Inf, the update must not happen
  int32_t reserved = 0;
};
static_assert(sizeof(StepValues) == 56);

// The values on a device, and the host's side of them.
class StepState {
 public:
  StepState(Device device, uint64_t seed);

  // What kernels read. Null on the meta device.
  StepValues* device_values() const;
  const Tensor& tensor() const { return values_; }  // u8[sizeof(StepValues)]
  Device device() const { return values_.device(); }
  uint64_t seed() const { return seed_; }

  // Writes step, learning rate and bias corrections, and resets clip_factor, grad_norm and
  // found_inf. Ordered on the current stream.
  void Begin(int64_t step, double lr, double beta1, double beta2, double loss_scale = 1);
  // The global index, within the step, of the next micro-batch's first sample (dropout depends on
  // it).
  void SetFirstSample(int64_t index);
  // Reads everything back; synchronises.
  StepValues Read() const;
  // The same without waiting: the values as they are once the work submitted so far is done. For
  // ToStepValues.
  HostRead ReadLater() const { return HostRead(values_); }

 private:
  void Upload(const StepValues& values);

  uint64_t seed_;
  StepValues host_;
  Tensor values_;
};

// What ReadLater reads; waits for it.
StepValues ToStepValues(HostRead& read);

// The state that random operations of this thread read (dropout), and whether they are on.
// Set by a guard, once per step; none: operations behave as in evaluation.
const StepState* CurrentStepState();

class TrainingScope {
 public:
  explicit TrainingScope(const StepState& state);
  ~TrainingScope();
  TrainingScope(const TrainingScope&) = delete;
  TrainingScope& operator=(const TrainingScope&) = delete;

 private:
  const StepState* previous_;
};

}  // namespace lockstep
