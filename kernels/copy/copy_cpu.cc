// Fills core's copy slot: strided and converting copies. Core declares it (core/slots.h).
#include "core/slots.h"
#include "kernels/cpu/elementwise.h"

namespace lockstep::cpu {
namespace {

void CopyCpu(Stream, const Tensor& from, const Tensor& to) {
  DispatchAll("copy", from.dtype(), [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    DispatchAll("copy", to.dtype(), [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      const From* source = from.data<From>();
      To* target = to.data<To>();
      ForEachRun(from, to, [=](int64_t a, int64_t b, int64_t n, int64_t step_a, int64_t step_b) {
        if (step_a == 1 && step_b == 1) {
          for (int64_t i = 0; i < n; ++i) target[b + i] = Convert<To>(source[a + i]);
        } else {
          for (int64_t i = 0; i < n; ++i) {
            target[b + i * step_b] = Convert<To>(source[a + i * step_a]);
          }
        }
      });
    });
  });
}

LS_REGISTER(copy_slot, DeviceType::kCpu, CopyCpu);

}  // namespace
}  // namespace lockstep::cpu
