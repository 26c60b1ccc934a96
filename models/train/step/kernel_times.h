// What the kernels of training steps take, on a CPU, where a kernel has ended when its call
// returns.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/dispatcher.h"
#include "models/report/metrics.h"

namespace lockstep::models {

class KernelTimes : public SlotObserver {
 public:
  void OnEnter(const char* name) override;
  // What a kernel's own calls take belongs to the kernel.
  void OnLeave() noexcept override;

  // Adds a step, in which this was told of the slots (ObserveSlots): the time of its forward,
  // backward and update is that of kernels, and what lies between them.
  void Add(const StepTimes& step);
  // StepMetrics::kernel_ms of all steps added since the last call.
  std::vector<std::pair<std::string, double>> Take();

 private:
  using Clock = std::chrono::steady_clock;

  std::map<const char*, Clock::duration> kernels_;
  double steps_ms_ = 0;
  int depth_ = 0;
  Clock::duration* running_ = nullptr;
  Clock::time_point since_;
};

}  // namespace lockstep::models
