#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/math.h"

namespace lockstep::optim {
namespace {
constexpr LrDecay kAll[] = {LrDecay::kConstant, LrDecay::kCosine, LrDecay::kLinear, LrDecay::kWsd};
}

std::string_view Name(LrDecay decay) {
  switch (decay) {
    case LrDecay::kConstant:
      return "constant";
    case LrDecay::kCosine:
      return "cosine";
    case LrDecay::kLinear:
      return "linear";
    case LrDecay::kWsd:
      return "wsd";
  }
  throw ArgumentError(StrCat("no learning rate schedule ", static_cast<int>(decay)));
}

LrDecay ParseLrDecay(std::string_view name) {
  for (const LrDecay decay : kAll) {
    if (Name(decay) == name) return decay;
  }
  throw ArgumentError(
      StrCat("unknown learning rate schedule '", name, "': use constant, cosine, linear or wsd"));
}

LrSchedule::LrSchedule(const LrScheduleOptions& o) : options_(o) {
  LS_CHECK(o.lr > 0 && std::isfinite(o.lr),
           "learning rate schedule: lr must be finite and above 0, got ", o.lr,
           ": it is the peak, such as in LrSchedule({.lr = 1e-3, .decay_steps = 1000})");
  LS_CHECK(o.warmup >= 0, "learning rate schedule: warmup must be at least 0 steps, got ",
           o.warmup);
  if (o.decay == LrDecay::kConstant) return;
  LS_CHECK(o.min_lr >= 0 && o.min_lr <= o.lr,
           "learning rate schedule: min_lr must be in [0, lr = ", o.lr, "], got ", o.min_lr);
  LS_CHECK(o.decay_steps >= 1, "learning rate schedule: ", Name(o.decay),
           " needs decay_steps of at least 1, got ", o.decay_steps);
  LS_CHECK(o.decay_start >= 0, "learning rate schedule: decay_start must be at least 0 steps, got ",
           o.decay_start);
  LS_CHECK(o.decay != LrDecay::kWsd || (o.wsd_fraction > 0 && o.wsd_fraction <= 1),
           "learning rate schedule: wsd_fraction must be in (0, 1], got ", o.wsd_fraction);
}

double LrSchedule::Progress(int64_t step) const {
  const double end = static_cast<double>(options_.decay_steps);
  double begin = static_cast<double>(options_.warmup);
  if (options_.decay == LrDecay::kWsd) {
    const auto start = static_cast<double>(options_.decay_start);
    begin = std::max(begin, start > 0 ? start : end * (1 - options_.wsd_fraction));
  }
  // A warm-up that ends after decay_steps leaves nothing to decay over.
  return std::clamp((static_cast<double>(step) - begin) / std::max(1.0, end - begin), 0.0, 1.0);
}

double LrSchedule::operator()(int64_t step) const {
  const LrScheduleOptions& o = options_;
  if (step < o.warmup) {
    return o.lr * static_cast<double>(step + 1) / static_cast<double>(o.warmup + 1);
  }
  switch (o.decay) {
    case LrDecay::kConstant:
      return o.lr;
    case LrDecay::kCosine:
      return o.min_lr +
             0.5 * (1 + math::Cos(std::numbers::pi * Progress(step))) * (o.lr - o.min_lr);
    case LrDecay::kLinear:
    case LrDecay::kWsd:
      return std::lerp(o.lr, o.min_lr, Progress(step));
  }
  throw ArgumentError(StrCat("no learning rate schedule ", static_cast<int>(o.decay)));
}

}  // namespace lockstep::optim
