// Sums, whose order depends only on the number of terms, and maxima. Compilers vectorise them.
#pragma once

#include <cstdint>
#include <limits>

namespace lockstep::cpu {

// The sum of 16 lanes: lane i and lane i + 8, then i and i + 4, and so on. In vectors, since
// compilers turn such a loop into stores, and loads that wait for several of them.
template <class A>
inline A SumLanes(const A (&lanes)[16]) {
  typedef A Eight __attribute__((vector_size(8 * sizeof(A)), aligned(sizeof(A)), may_alias));
  const Eight eight =
      *reinterpret_cast<const Eight*>(lanes) + *reinterpret_cast<const Eight*>(lanes + 8);
  const auto four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                    __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  const auto two =
      __builtin_shufflevector(four, four, 0, 1) + __builtin_shufflevector(four, four, 2, 3);
  return two[0] + two[1];
}

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
  for (int lane = 0; lane < kLanes && i < n; ++i, ++lane) lanes[lane] += f(i);
  return SumLanes(lanes);
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
