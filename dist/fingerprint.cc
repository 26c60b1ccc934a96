#include "dist/fingerprint.h"

#include <atomic>

#include "core/thread_pool.h"
#include "kernels/dispatch.h"

namespace lockstep::dist {
namespace {

constexpr uint64_t kIndex = 0x9e3779b97f4a7c15, kMix = 0xd6e8feb86659fd93;  // odd
constexpr int64_t kGrain = 1 << 16;

// A bijection of the bits at each index: steps that can be undone, by which each bit of the input
// comes to affect every bit of the result.
uint64_t Hash(uint64_t index, uint64_t bits) {
  uint64_t x = index * kIndex + bits;
  x = (x ^ (x >> 32)) * kMix;
  x = (x ^ (x >> 29)) * kMix;
  return x ^ (x >> 32);
}

template <class Unit>
uint64_t Sum(const Unit* elements, int64_t count, int64_t first) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += Hash(static_cast<uint64_t>(first + i), elements[i]);
  return sum;
}

template <class Unit>
uint64_t ParallelSum(const Unit* elements, int64_t count, int64_t first) {
  if (count <= kGrain) return Sum(elements, count, first);
  std::atomic<uint64_t> sum = 0;
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    sum += Sum(elements + begin, end - begin, first + begin);
  });
  return sum;
}

}  // namespace

uint64_t Fingerprint(const Tensor& x, int64_t first) {
  const Tensor host = x.Detach().To(kCpu);
  LS_CHECK(host.is_contiguous(), "Fingerprint: x must be contiguous, not ", x.Describe(),
           ": call Contiguous()");
  uint64_t sum = 0;
  if (x.numel() == 0) return sum;
  DispatchUnit(SizeOf(x.dtype()), [&](auto unit) {
    sum = ParallelSum(Units<typename decltype(unit)::type>(host), x.numel(), first);
  });
  return sum;
}

uint64_t Fingerprint(const Parameter& parameter, const Tensor& part, int64_t begin, int64_t end) {
  if (begin >= end) return 0;
  const Tensor host = part.Detach().View({part.numel()}).Slice(0, begin, end).To(kCpu);
  uint64_t sum = 0;
  DispatchUnit(SizeOf(part.dtype()), [&](auto unit) {
    const auto* const elements = Units<typename decltype(unit)::type>(host);
    parameter.layout().ForEachRun(parameter.logical_shape(), begin, end,
                                  [&](int64_t i, int64_t first, int64_t count) {
                                    sum += ParallelSum(elements + (i - begin), count, first);
                                  });
  });
  return sum;
}

}  // namespace lockstep::dist
