// Values that change from step to step. Kernels read them through a pointer, so that a captured
// CUDA graph stays valid. Usable from .cu files.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/host_read.h"
#include "core/tensor.h"

namespace lockstep {

class Leaf;

// The decay rates of an optimizer's moving averages of gradients and of their squares.
struct Betas {
  double first = 0, second = 0;
  bool operator==(const Betas&) const = default;
};
inline constexpr int kMaxBetas = 8;  // distinct pairs per step

// 1 - beta^(step + 1): Adam divides these averages by it, since they start at zero.
struct BiasCorrection {
  float first = 1, second = 1;
};

// What root gradients are multiplied by, so that small gradients do not vanish in 16 bits. It
// adapts itself on the device (kernels/loss_scale), and is what a checkpoint must hold of a
// StepState.
struct LossScale {
  float scale = 1;
  int32_t good_steps = 0;  // since it changed
  int64_t skipped = 0;     // updates, since the beginning of the run
  bool operator==(const LossScale&) const = default;
};

// Defaults: those of PyTorch's GradScaler (Micikevicius et al., "Mixed precision training", 2018).
// Powers of two leave the bits of gradients as they are.
struct LossScaleOptions {
  double init = 65536;
  double growth = 2;     // after growth_interval good steps in a row; 1: never
  double backoff = 0.5;  // after a step with an infinite or NaN gradient; 1: never
  int64_t growth_interval = 2000;
};

// What StepValues::found_inf may be, besides 0.
inline constexpr int32_t kNotFinite = 1;  // a gradient is NaN or infinite
inline constexpr int32_t kSpike = 2;      // the gradients' norm is above norm_limit

// Lives on the device.
struct StepValues {
  int64_t step = 0;          // 0-based number of the optimizer step
  uint64_t seed = 0;         // key of all random numbers
  int64_t first_sample = 0;  // global index of the micro-batch's first sample within the step
  float lr = 0;
  float clip_factor = 1;  // min(1, clip / norm): updates use gradient * clip_factor / scale
  float grad_norm = 0;    // of the unscaled gradient, before clipping
  int32_t found_inf = 0;  // nonzero: the update must be skipped, as kNotFinite or kSpike says
  float norm_limit = std::numeric_limits<float>::infinity();
  BiasCorrection corrections[kMaxBetas];  // for the betas given to StepState::Begin, in that order
  LossScale loss_scale;  // lives on from step to step; the rest is written by Begin
};
static_assert(sizeof(StepValues) == 128);

// Watches over a step's loop, as optim::TrainingStep does.
class StepWatch {
 public:
  virtual ~StepWatch() = default;
  // A Backward within the step is about to add to the gradients of these leaves: throws
  // ArgumentError to refuse it.
  virtual void CheckBackward(std::span<const std::shared_ptr<Leaf>> leaves) const = 0;
};

// StepValues on a device, and the host's side of them. Copies share everything.
class StepState {
 public:
  StepState(Device device, uint64_t seed);

  // What kernels read. Null on the meta device.
  StepValues* device_values() const;
  const Tensor& tensor() const;  // u8[sizeof(StepValues)]
  Device device() const { return tensor().device(); }
  uint64_t seed() const;

  // Writes the step, the learning rate and the bias corrections of an optimizer's betas, and resets
  // the rest. Ordered on the current stream. Loops call Optimizer::BeginStep, which calls this.
  // Throws ArgumentError for more than kMaxBetas betas.
  void Begin(int64_t step, double lr, std::vector<Betas> betas = {});

  // From now on root gradients are multiplied by a loss scale, which the optimizer's Step adapts
  // (off at first). Each Backward takes its root from TrainingStep::Root. `from`: continue with the
  // one that a checkpoint holds (Read().loss_scale). Throws ArgumentError for options or a scale
  // that are out of range.
  void EnableLossScaling(const LossScaleOptions& options = {},
                         const std::optional<LossScale>& from = {});
  const std::optional<LossScaleOptions>& loss_scaling() const;
  // The root gradient of this thread's next Backward was multiplied.
  void SetRootScaled() const;
  bool root_scaled() const;
  // The same is known to be divided by the samples of all ranks.
  void SetRootShared() const;
  bool root_shared() const;

  // The index of these betas in StepValues::corrections. Throws ArgumentError if this step began
  // without them.
  int CorrectionIndex(const Betas& betas) const;
  // Sets the global index, within the step, of the next micro-batch's first sample (dropout depends
  // on it). Call it once per micro-batch, before its forward.
  void SetFirstSample(int64_t index);
  // The same from an i64[1] on the device, which a captured graph reads each time it is launched.
  void SetFirstSample(const Tensor& index);
  // A larger norm of the step's gradients makes ClipGradNorm set found_inf, so that the update is
  // skipped; below 0, any does. Call it between Begin and ClipGradNorm.
  void SetNormLimit(float limit);
  // Whether random numbers were drawn in this step without a call of SetFirstSample, that is, as if
  // for the step's first sample: wrong if several ranks share the step's samples.
  bool drew_without_first_sample() const;
  // Reads everything back; synchronises.
  StepValues Read() const;
  // The same without waiting: the values once the work submitted so far is done. Pass it to
  // ToStepValues.
  HostRead ReadLater() const;
  // Whether either was called since Begin.
  bool was_read() const;

  // What watches over the step's loop; null: nothing does.
  const StepWatch* watch() const;
  void SetWatch(const StepWatch* watch) const;

 private:
  friend const StepState* RandomState();
  friend void EndMicroBatch();
  friend uint64_t DistinctSite(uint64_t);
  friend class Decisions;
  friend class RecomputeScope;
  struct Block;

  static const StepState*& OfThread();
  // With the values as they are now, in the order of the current stream.
  StepState Copy() const;
  // Uploads bytes [first, first + count) of the host's values.
  void Upload(size_t first, size_t count);

  std::shared_ptr<Block> block_;
};

// Waits for the result of ReadLater and returns it.
StepValues ToStepValues(HostRead& read);

// The state of this thread's training step. Null in evaluation: outside of steps and under NoGrad.
// Random operations and batch norm depend on it.
const StepState* CurrentStepState();

// The same, also under NoGrad.
const StepState* StepUnderWay();

// For the result of an operation that behaves differently in training (dropout, batch norm), where
// CurrentStepState is null: `y`, but a Backward through it throws, unless it says that it is of an
// evaluation. `y` itself under NoGrad.
Tensor Evaluated(Tensor y);

// CurrentStepState, for an operation that is about to draw random numbers. Where it is null, the
// operation returns Evaluated(y). Throws ArgumentError if it would repeat those of the previous
// micro-batch because SetFirstSample was not called since the last Backward. (Several forwards
// before one Backward are one micro-batch.)
const StepState* RandomState();

// Sites tell random operations apart. Returns `site` on its first use in this thread's micro-batch
// and a new number on each later use, so that a module that runs twice (on both sides of a siamese
// network) draws two masks. A failed forward counts as a use: call SetFirstSample before retrying.
// Outside of a step, returns `site`. A forward that runs again to recompute activations has the
// sites that it had (core/autograd/recompute.h).
uint64_t DistinctSite(uint64_t site);

// A Backward through what is Evaluated, and not on purpose, calls it: throws ArgumentError.
[[noreturn]] void ThrowEvaluated();

// The outermost Backward calls it at its end: the next forward begins another micro-batch.
void EndMicroBatch();

// Makes `state` the thread's current one. In training loops, the result of Optimizer::BeginStep
// does this.
class TrainingScope {
 public:
  explicit TrainingScope(const StepState& state);
  ~TrainingScope();
  TrainingScope(const TrainingScope&) = delete;
  TrainingScope& operator=(const TrainingScope&) = delete;

 private:
  const StepState state_;  // keeps the shared block alive
  const StepState* previous_;
};

}  // namespace lockstep
