// Some training steps of a small model, by which a machine is judged: of --budget, and of
// plan --calibrate.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

// The depths (models/options/depth_laws.h) that are timed.
std::vector<int64_t> MeasuredDepths(Device device);

struct MeasuredSteps {
  RunSetup setup;
  double seconds = 0;  // of the fastest step
  // StepMetrics::kernel_ms of such a step; empty if nothing was watched.
  std::vector<std::pair<std::string, double>> kernel_ms{};
};

// Trains a model for at most some seconds on random tokens: as these options of train_gpt say, with
// as many sequences in a step, of one micro-batch, as are some thousands of tokens.
// `watches`: each kernel is timed. Throws InputError.
MeasuredSteps MeasureSteps(const std::vector<std::string>& arguments, Device device, bool watches);

}  // namespace lockstep::models
