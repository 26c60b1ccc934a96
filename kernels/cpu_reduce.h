// Sums whose order depends on the number of terms alone, and which compilers vectorise.
#pragma once

#include <cstdint>

namespace lockstep::cpu {

// f(0) + ... + f(n - 1) in the type A: term i goes to lane i mod 16, and the lanes are added
// pairwise. The same bits whatever the alignment and the vector width.
template <class A, class F>
inline A SumOver(int64_t n, const F& f) {
  constexpr int kLanes = 16;
  A lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += f(i + lane);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += f(i);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace lockstep::cpu
