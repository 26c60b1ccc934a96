// Fills core's copy slot: strided and converting copies. Core declares it (core/slots.h).
#include <algorithm>
#include <type_traits>

#include "core/slots.h"
#include "kernels/cpu/strided.h"

namespace lockstep::cpu {
namespace {

// to[i * step_b] = from[i * step_a], converted.
template <class From, class To>
void CopyRun(const From* from, To* to, int64_t n, int64_t step_a, int64_t step_b) {
  if (step_a == 1 && step_b == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = Convert<To>(from[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i * step_b] = Convert<To>(from[i * step_a]);
}

// By way of f32, as Convert takes narrow types.
template <class From, class To>
void CopyRunThroughFloat(const From* from, To* to, int64_t n, int64_t step_a, int64_t step_b) {
  constexpr int64_t kTile = 256;
  float tile[kTile];
  for (int64_t i = 0; i < n; i += kTile) {
    const int64_t m = std::min(kTile, n - i);
    CopyRun(from + i * step_a, tile, m, step_a, 1);
    CopyRun(tile, to + i * step_b, m, 1, step_b);
  }
}

void CopyCpu(Stream, const Tensor& from, const Tensor& to) {
  const StridedDims<2> dims(to.shape(), {from.strides(), to.strides()});
  DispatchAll("copy", from.dtype(), [&]<class From>(TypeTag<From>) {
    DispatchAll("copy", to.dtype(), [&]<class To>(TypeTag<To>) {
      const From* source = from.data<From>();
      To* target = to.data<To>();
      constexpr bool kThroughFloat = !std::is_same_v<From, To> && !std::is_same_v<From, float> &&
                                     !std::is_same_v<To, float> &&
                                     (kIsNarrow<From> || kIsNarrow<To>);
      ForEachRun(to.numel(), dims, [=](const auto& at, int64_t n, const auto& steps) {
        if constexpr (kThroughFloat) {
          CopyRunThroughFloat(source + at[0], target + at[1], n, steps[0], steps[1]);
        } else {
          CopyRun(source + at[0], target + at[1], n, steps[0], steps[1]);
        }
      });
    });
  });
}

LS_REGISTER(copy_slot, DeviceType::kCpu, CopyCpu);

}  // namespace
}  // namespace lockstep::cpu
