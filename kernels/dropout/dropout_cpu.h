// Masks of dropout on the CPU, for ops that fuse it.
#pragma once

#include <algorithm>

#include "core/step_state.h"
#include "kernels/cpu/philox.h"
#include "kernels/dropout/dropout_mask.h"

namespace lockstep::cpu {

// `key`: i64[kDropoutKeySize], as ops::Dropout saves it.
inline void WriteDropoutKey(const StepValues& values, uint64_t site, int64_t* key) {
  key[0] = static_cast<int64_t>(values.seed);
  key[1] = static_cast<int64_t>(StepStream(site, values.step));
  key[2] = values.first_sample;
}

// The mask of a contiguous tensor. Samples lie one after the other in memory as in the whole
// batch's tensor, so element i has the number first_sample * (elements per sample) + i there, and
// where each sample is a part that much more for the gaps between them.
class ElementMask {
 public:
  ElementMask(const int64_t* key, double p, int64_t per_sample, SamplePart part)
      : philox_(static_cast<uint64_t>(key[0])),
        stream_(static_cast<uint64_t>(key[1])),
        first_(static_cast<uint64_t>(key[2] * part.Whole(per_sample) + part.begin)),
        per_sample_(per_sample),
        gap_(part.Whole(per_sample) - per_sample),
        threshold_(DropoutThreshold(p)),
        scale_(1 / (1 - p)) {}

  // What kept elements are multiplied by.
  double scale() const { return scale_; }
  // Calls f(i, whether element begin + i is kept) for i in [0, n).
  template <class F>
  void ForEach(int64_t begin, int64_t n, const F& f) const {
    const uint32_t threshold = threshold_;
    for (int64_t done = 0; done < n;) {
      // As far as numbers are consecutive.
      const int64_t at = begin + done, sample = gap_ == 0 ? 0 : at / per_sample_;
      const int64_t run = gap_ == 0 ? n : std::min(n - done, (sample + 1) * per_sample_ - at);
      ForEachRandom(philox_, stream_, first_ + static_cast<uint64_t>(at + sample * gap_), run,
                    [=](int64_t i, int64_t count, const uint32_t* random) {
                      for (int64_t k = 0; k < count; ++k) {
                        f(done + i + k, DropoutKeeps(random[k], threshold));
                      }
                    });
      done += run;
    }
  }

 private:
  Philox philox_;
  uint64_t stream_, first_;
  int64_t per_sample_, gap_;  // elements of a sample here; those that the tensor lacks
  uint32_t threshold_;
  double scale_;
};

}  // namespace lockstep::cpu
