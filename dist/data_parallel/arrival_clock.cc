#include "dist/data_parallel/arrival_clock.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "dist/blocked_time.h"

namespace lockstep::dist {
namespace {

double Milliseconds(Work::Clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

}  // namespace

void ArrivalClock::Computed() {
  if (group_ == nullptr || summed_ == Clock::time_point()) return;
  const double blocked_ms = Milliseconds(Blocked::Time() - blocked_);
  if (device_summed_ == nullptr) {
    ms_ = Milliseconds(Clock::now() - summed_) - blocked_ms;
    return;
  }
  if (device_summed_before_ != nullptr) {
    const std::optional<double> ms = device_computed_->Since(*device_summed_before_);
    if (!ms) return;  // a later step asks again
    ms_ = std::max(0.0, *ms - blocked_ms_);
  }
  device_summed_before_ = std::move(device_summed_);
  device_computed_ = group_->Mark();
  blocked_ms_ = blocked_ms;
}

void ArrivalClock::Summed() {
  if (group_ == nullptr) return;
  device_summed_ = group_->Mark();
  summed_ = Clock::now();
  blocked_ = Blocked::Time();
}

}  // namespace lockstep::dist
