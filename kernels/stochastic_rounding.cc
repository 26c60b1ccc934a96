#include "kernels/stochastic_rounding.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {

ElementPlace PlaceOf(const ShardLayout& layout, const Shape& whole) {
  ElementPlace place{.skip = layout.range ? layout.range->begin : 0};
  ShardLayout cuts = layout;
  cuts.range.reset();
  const int64_t n = cuts.PartShape(whole).numel();
  if (n == 0) return place;
  const auto [first, run] = cuts.RunAt(whole, 0);
  place.first = first;
  if (run >= n) return place;
  place.run = run;
  place.stride = cuts.RunAt(whole, run).first - first;
  for (int64_t i = 0; i < n; i += run) {
    const ShardLayout::Run at = cuts.RunAt(whole, i);
    LS_CHECK(at.first == first + i / run * place.stride && at.count >= std::min(run, n - i),
             "stochastic rounding of a part of a parameter of shape ", whole,
             " whose runs of elements differ in length or distance is not supported: keep f32 "
             "originals and f32 state");
  }
  return place;
}

}  // namespace lockstep
