// Fills core's accumulate slot: to += from, for gradients. Core declares it (core/slots.h).
#include "core/slots.h"
#include "kernels/cpu/elementwise.h"

namespace lockstep::cpu {
namespace {

void AccumulateCpu(Stream, const Tensor& from, const Tensor& to) {
  DispatchFloat("accumulate", from.dtype(), [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    DispatchFloat("accumulate", to.dtype(), [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      using A = std::common_type_t<Acc<From>, Acc<To>>;
      const From* source = from.data<From>();
      To* target = to.data<To>();
      ForEachRun(from, to, [=](int64_t a, int64_t b, int64_t n, int64_t step_a, int64_t step_b) {
        for (int64_t i = 0; i < n; ++i) {
          To& sum = target[b + i * step_b];
          sum = Convert<To>(Convert<A>(sum) + Convert<A>(source[a + i * step_a]));
        }
      });
    });
  });
}

LS_REGISTER(accumulate_slot, DeviceType::kCpu, AccumulateCpu);

}  // namespace
}  // namespace lockstep::cpu
