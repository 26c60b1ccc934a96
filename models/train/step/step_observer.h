// Who sees what training steps compute, and leaves it as it is.
#pragma once

#include <cstdint>

#include "data/batch.h"

namespace lockstep::models {

// Its functions are called by the thread that trains, on every rank alike, so they may communicate.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // The step begins that makes the `step`-th update, counted from 1.
  virtual void BeginStep(int64_t /*step*/) {}
  // This rank has read a micro-batch.
  virtual void OnBatch(const data::Batch& /*batch*/) {}
  // The gradients are summed, and the weights still those of before.
  virtual void BeforeUpdate() {}
  // The weights are updated; the gradients may still be there, or not.
  virtual void EndStep() {}
};

}  // namespace lockstep::models
