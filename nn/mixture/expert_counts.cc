#include "nn/mixture/expert_counts.h"

namespace lockstep::nn {

std::vector<int64_t> ExpertCounts(const Tensor& offsets, int64_t rows) {
  const int64_t experts = offsets.numel() - 1;
  std::vector<int64_t> counts;
  if (offsets.device().is_meta()) {
    for (int64_t e = 0; e < experts; ++e) {
      counts.push_back((e + 1) * rows / experts - e * rows / experts);
    }
    return counts;
  }
  const std::vector<int32_t> at = offsets.ToVector<int32_t>();
  for (size_t e = 0; e + 1 < at.size(); ++e) counts.push_back(at[e + 1] - at[e]);
  return counts;
}

}  // namespace lockstep::nn
