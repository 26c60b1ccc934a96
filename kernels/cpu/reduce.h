// Sums, whose order depends only on the number of terms, and maxima. Compilers vectorise them.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cpu/vector.h"

namespace lockstep::cpu {

// f(0) + ... + f(n - 1) in the type A: term i goes to lane i mod 16, and the lanes are added in
// pairs, i and i + 8 first. The same bits whatever the alignment and the vector width.
template <class A, class F>
inline A SumOver(int64_t n, const F& f) {
  constexpr int kLanes = 16;
  A lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += f(i + lane);
  }
  for (int lane = 0; lane < kLanes && i < n; ++i, ++lane) lanes[lane] += f(i);
  using Eight = typename Vector<A, 8>::Memory;
  return SumLanes(*reinterpret_cast<const Eight*>(lanes) +
                  *reinterpret_cast<const Eight*>(lanes + 8));
}

// The largest of f(0), ..., f(n - 1), or minus infinity; ignores NaNs.
template <class A, class F>
inline A MaxOver(int64_t n, const F& f) {
  constexpr int kLanes = 16;
  A lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = -std::numeric_limits<A>::infinity();
  const auto take = [&](int lane, A v) { lanes[lane] = v > lanes[lane] ? v : lanes[lane]; };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) take(lane, f(i + lane));
  }
  for (int lane = 0; lane < kLanes && i < n; ++i, ++lane) take(lane, f(i));
  for (int lane = 1; lane < kLanes; ++lane) take(0, lanes[lane]);
  return lanes[0];
}

// Like SumOver, in a tree over blocks of 1024 terms: the error of long sums grows with the
// logarithm of their length.
template <class A, class F>
inline A PairwiseSum(int64_t begin, int64_t end, const F& f) {
  constexpr int64_t kBlock = 1024;
  const int64_t n = end - begin;
  if (n <= kBlock) {
    return SumOver<A>(n, [&](int64_t i) { return f(begin + i); });
  }
  const int64_t middle = begin + (n / kBlock + 1) / 2 * kBlock;
  return PairwiseSum<A>(begin, middle, f) + PairwiseSum<A>(middle, end, f);
}

}  // namespace lockstep::cpu
