// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::optim {

enum class LrDecay {
  kConstant,  // lr
  kCosine,    // half a cosine from lr to min_lr (nanoGPT; Loshchilov and Hutter, "SGDR", 2017)
  kLinear,    // a line from lr to min_lr
  kWsd,       // lr, then a line to min_lr over the last part (Hu et al., "MiniCPM", 2024)
};

// "constant", "cosine", "linear", "wsd"; else throws ArgumentError listing them.
LrDecay ParseLrDecay(std::string_view name);
std::string_view Name(LrDecay decay);

struct LrScheduleOptions {
  LrDecay decay = LrDecay::kCosine;
  double lr = 0;      // the peak; must be given
  double min_lr = 0;  // from decay_steps on
  int64_t warmup = 0;
  int64_t decay_steps = 0;    // counted from step 0; unused by kConstant
  double wsd_fraction = 0.1;  // of decay_steps: how long kWsd decays
  int64_t decay_start = 0;    // kWsd: where it begins to, instead; 0: by wsd_fraction
};

// Step s < warmup: lr (s + 1) / (warmup + 1), whatever the decay. After it, with r growing from 0
// to 1 over [warmup, decay_steps] (kWsd: over the last wsd_fraction of [0, decay_steps], or from
// decay_start on, but not before the warm-up's end):
//   cosine: min_lr + (1 + cos(pi r)) / 2 (lr - min_lr);  linear, wsd: lr + r (min_lr - lr).
class LrSchedule {
 public:
  // Throws ArgumentError unless 0 <= min_lr <= lr, 0 < lr, finite; warmup >= 0; decay_steps >= 1,
  // decay_start >= 0 and 0 < wsd_fraction <= 1 where used.
  explicit LrSchedule(const LrScheduleOptions& options);

  double operator()(int64_t step) const;
  const LrScheduleOptions& options() const { return options_; }

 private:
  double Progress(int64_t step) const;

  LrScheduleOptions options_;
};

}  // namespace lockstep::optim
