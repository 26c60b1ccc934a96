#include "optim/spike_guard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"

namespace lockstep::optim {
namespace {

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

SpikeGuard::SpikeGuard(double deviations, SpikeHistory history)
    : deviations_(deviations), history_(std::move(history)) {
  LS_CHECK(deviations > 0 && std::isfinite(deviations),
           "SpikeGuard: deviations must be positive, got ", deviations);
  LS_CHECK(history_.losses.size() == history_.norms.size() && history_.losses.size() <= kWindow,
           "SpikeGuard: a history has as many losses as norms, at most ", kWindow, ", got ",
           history_.losses.size(), " and ", history_.norms.size());
}

double SpikeGuard::LimitOf(std::vector<double> values) const {
  if (values.size() < kWindow / 2) return std::numeric_limits<double>::infinity();
  constexpr double kOfNormal = 1.4826;  // its standard deviation, over its median distance
  constexpr double kLeast = 0.01;       // where all values are nearly the same
  const double median = Median(values);
  for (double& v : values) v = std::abs(v - median);
  return median + deviations_ * std::max(kOfNormal * Median(values), kLeast * std::abs(median));
}

bool SpikeGuard::IsSpike(double loss) const {
  return std::isfinite(loss) && loss > LimitOf(history_.losses);
}

float SpikeGuard::NormLimit() const { return static_cast<float>(LimitOf(history_.norms)); }

void SpikeGuard::Add(double loss, double norm) {
  if (!std::isfinite(loss) || !std::isfinite(norm)) return;
  for (auto& [values, value] : {std::pair(&history_.losses, loss), {&history_.norms, norm}}) {
    if (values->size() == kWindow) values->erase(values->begin());
    values->push_back(value);
  }
}

}  // namespace lockstep::optim
