#include "models/train/step/kernel_times.h"

#include <algorithm>

namespace lockstep::models {

void KernelTimes::OnEnter(const char* name) {
  if (depth_++ > 0) return;
  running_ = &kernels_[name];
  since_ = Clock::now();
}

void KernelTimes::OnLeave() noexcept {
  if (--depth_ == 0) *running_ += Clock::now() - since_;
}

void KernelTimes::Add(const StepTimes& step) {
  steps_ms_ += step.forward_ms + step.backward_ms + step.update_ms;
}

std::vector<std::pair<std::string, double>> KernelTimes::Take() {
  std::map<std::string, double> by_name;
  double between = std::exchange(steps_ms_, 0);
  for (const auto& [name, time] : std::exchange(kernels_, {})) {
    const double ms = std::chrono::duration<double, std::milli>(time).count();
    by_name[name] += ms;
    between -= ms;
  }
  std::vector<std::pair<std::string, double>> all(by_name.begin(), by_name.end());
  std::ranges::sort(all, std::ranges::greater(), &std::pair<std::string, double>::second);
  // What adds up the gradients of ranks within a step's wait for them is no part of the three.
  if (!all.empty()) all.emplace_back(kBetweenKernels, std::max(between, 0.0));
  return all;
}

}  // namespace lockstep::models
