// What the kernels of training steps take, and how long steps wait for other ranks.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dispatcher.h"
#include "dist/blocked_time.h"
#include "dist/work.h"
#include "models/report/metrics.h"

namespace lockstep::models {

// On a CPU a kernel has ended when its call returns. On a GPU events are recorded before and after
// each call in the stream that computes, so a step must not be captured as a CUDA graph while it is
// watched; what other streams do meanwhile is not counted.
class KernelTimes {
 public:
  class Slots;

  explicit KernelTimes(Device device);
  ~KernelTimes();

  // While it lives, the kernels and the waits of this thread are counted.
  class Watch {
   public:
    explicit Watch(KernelTimes* times);  // null: nothing is counted
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    KernelTimes* const times_;
    const ObserveSlots observed_;
    dist::Blocked::Times waited_;  // before
  };

  // Adds a step that was watched.
  void Add(const StepTimes& step);
  // StepMetrics::kernel_ms of all steps added since the last call, which are done.
  std::vector<std::pair<std::string, double>> Take();

 private:
  const bool on_device_;
  const std::unique_ptr<Slots> slots_;
  dist::Blocked::Times waits_;
  double steps_ms_ = 0;    // in which there are kernels
  double exposed_ms_ = 0;  // besides these; a part of waits_
};

// What waiting for a group of a run (RunRanks) is called: "messages of tp", "idle in the pipeline".
std::string WaitFor(std::string_view group);

}  // namespace lockstep::models
