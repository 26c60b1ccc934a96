// What changes from step to step and kernels read by pointer, so that a captured CUDA graph stays
// right. Usable from .cu files.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/host_read.h"
#include "core/parameter.h"
#include "core/tensor.h"

namespace lockstep {

// The decay rates of an optimizer's averages of gradients and of their squares.
struct Betas {
  double first = 0, second = 0;
  bool operator==(const Betas&) const = default;
};
inline constexpr int kMostBetas = 8;  // different ones in a step

// What Adam divides these averages by, since they start at zero: 1 - beta^(step + 1).
struct BiasCorrection {
  float first = 1, second = 1;
};

// Lives on the device.
struct StepValues {
  int64_t step = 0;          // 0-based number of the optimizer step
  uint64_t seed = 0;         // key of all random numbers
  int64_t first_sample = 0;  // global index of the micro-batch's first sample within the step
  float lr = 0;
  float loss_scale = 1;   // gradients come multiplied by it
  float clip_factor = 1;  // min(1, clip / norm): updates use gradient * clip_factor / loss_scale
  float grad_norm = 0;    // of the unscaled gradient, before clipping
  int32_t found_inf = 0;  // nonzero: a gradient is NaN or Inf, the update must not happen
  int32_t reserved = 0;
  BiasCorrection corrections[kMostBetas];  // of the betas of StepState::Begin, in their order
};
static_assert(sizeof(StepValues) == 112);

// What updates parameters by a StepState: an optimizer, for the errors of the step.
class StepUpdater {
 public:
  virtual ~StepUpdater() = default;
  virtual const char* name() const = 0;
  virtual const std::vector<std::shared_ptr<Parameter>>& parameters() const = 0;
};

enum class StepPhase { kGradients, kClipped, kUpdated };

// The values on a device, and the host's side of them. Copies share everything.
class StepState {
 public:
  StepState(Device device, uint64_t seed);

  // What kernels read. Null on the meta device.
  StepValues* device_values() const;
  const Tensor& tensor() const;  // u8[sizeof(StepValues)]
  Device device() const { return tensor().device(); }
  uint64_t seed() const;

  // Writes step, learning rate and the bias corrections of an optimizer's betas, and resets the
  // rest. Ordered on the current stream. Loops call Optimizer::BeginStep, which calls this. Throws
  // ArgumentError for more than kMostBetas betas.
  void Begin(int64_t step, double lr, std::vector<Betas> betas = {}, double loss_scale = 1);
  // Where StepValues::corrections has those of these betas. Throws ArgumentError if this step was
  // begun without them.
  int CorrectionIndex(const Betas& betas) const;
  // The global index, within the step, of the next micro-batch's first sample (dropout depends on
  // it): once per micro-batch, before its forward.
  void SetFirstSample(int64_t index);
  // The same by i64 [1] on the device, so that a captured graph reads it anew.
  void SetFirstSample(const Tensor& index);
  // Reads everything back; synchronises.
  StepValues Read() const;
  // The same without waiting: the values as they are once the work submitted so far is done. For
  // ToStepValues.
  HostRead ReadLater() const { return HostRead(tensor()); }

  // The optimizer whose step this is, from its BeginStep until the result of that is gone; else
  // null.
  const StepUpdater* updater() const;
  void SetUpdater(const StepUpdater* updater);
  // How far that step is. A failed capture of the update takes it back.
  StepPhase phase() const;
  void SetPhase(StepPhase phase) const;

 private:
  friend const StepState* RandomState();
  friend void EndMicroBatch();
  friend bool DrewWithoutFirstSample();
  friend uint64_t DistinctSite(uint64_t);
  struct Block;

  void Upload();

  std::shared_ptr<Block> block_;
};

// What ReadLater reads; waits for it.
StepValues ToStepValues(HostRead& read);

// The state of the step that this thread trains in; null in evaluation, which is everywhere outside
// of a step, and wherever nothing is recorded (NoGrad). Random operations, batch norm and the like
// behave accordingly.
const StepState* CurrentStepState();

// The same, for an operation that is about to draw random numbers. Throws ArgumentError if it would
// repeat those of the micro-batch before: since the last Backward, SetFirstSample was not called.
// (Several forwards ahead of one Backward are one micro-batch.)
const StepState* RandomState();

// `site`, which tells random operations apart, when this thread's micro-batch asks for it first,
// and then another number each time: a module that runs twice (on both sides of a siamese network)
// draws two masks. A forward that failed counts too: call SetFirstSample before it is tried again.
// Outside of a step, `site`. Within Backward, where a forward runs again to recompute activations,
// the site that it had; throws ArgumentError if there were several.
uint64_t DistinctSite(uint64_t site);

// Whether random numbers were drawn in this thread's step as if for the step's first sample, which
// nobody had said: wrong where several ranks share the step's samples.
bool DrewWithoutFirstSample();

// Backward calls it with the first node of its graph. Throws ArgumentError if that was recorded
// between this thread's step and the one before, which is in evaluation, or if one of the leaves is
// a parameter of this step's optimizer, whose gradients are clipped already.
void CheckBackward(uint64_t sequence, std::span<const std::shared_ptr<Leaf>> leaves);

// The outermost Backward calls it at its end: the next forward is another micro-batch.
void EndMicroBatch();

// Makes `state` the thread's. In a loop, the result of Optimizer::BeginStep does.
class TrainingScope {
 public:
  explicit TrainingScope(const StepState& state);
  ~TrainingScope();
  TrainingScope(const TrainingScope&) = delete;
  TrainingScope& operator=(const TrainingScope&) = delete;

 private:
  const StepState state_;  // shared: what it points to stays
  const StepState* previous_;
};

}  // namespace lockstep
