// What a training step will take, before it is run: a step on the meta device, which has shapes but
// no bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "models/language_model.h"
#include "models/run_setup.h"
#include "models/trainer.h"
#include "optim/optimizer.h"

namespace lockstep::models {

// Bytes of tensors, as asked for: the allocator's rounding, the threads' scratch memory, the
// program and its data are not in it.
struct MemoryKinds {
  int64_t parameters = 0;
  int64_t gradients = 0;    // of parameters
  int64_t optimizer = 0;    // its state
  int64_t activations = 0;  // batches, and what forward keeps for backward
  int64_t workspace = 0;    // gradients of activations, and temporaries
  int64_t total() const { return parameters + gradients + optimizer + activations + workspace; }
};

struct MemoryPlan {
  MemoryKinds peak;     // at the moment when most is taken; its total is what the run needs
  MemoryKinds largest;  // of each kind by itself, at different moments
};

struct MemoryPlanOptions {
  std::function<std::shared_ptr<LanguageModel>()> model;  // materialised on the meta device
  std::function<std::unique_ptr<optim::Optimizer>(LanguageModel&)> optimizer;
  int64_t batch_size = 1;
  int64_t window = 1;  // tokens of a sample
  int64_t grad_accum = 1;
  double clip = 1;
};

// Makes model and optimizer, and two updates with them, as Trainer does. Allocates next to nothing.
MemoryPlan PlanMemory(const MemoryPlanOptions& options);
MemoryPlan PlanMemory(const RunSetup& setup);

// "48.2 MiB: parameters 3.07, gradients ..." on one line; a table of several.
std::string Summary(const MemoryPlan& plan);
std::string Table(const MemoryPlan& plan);

}  // namespace lockstep::models
