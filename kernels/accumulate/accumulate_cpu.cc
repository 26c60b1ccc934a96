// Fills core's accumulate slot: to += from, for gradients. Core declares it (core/slots.h).
#include "core/slots.h"
#include "kernels/cpu/strided.h"

namespace lockstep::cpu {
namespace {

void AccumulateCpu(Stream, const Tensor& from, const Tensor& to) {
  const StridedDims<2> dims(to.shape(), {from.strides(), to.strides()});
  DispatchFloat("accumulate", from.dtype(), [&]<class From>(TypeTag<From>) {
    DispatchFloat("accumulate", to.dtype(), [&]<class To>(TypeTag<To>) {
      using A = std::common_type_t<Acc<From>, Acc<To>>;
      const From* source = from.data<From>();
      To* target = to.data<To>();
      ForEachRun(to.numel(), dims, [=](const auto& at, int64_t n, const auto& steps) {
        const auto run = [from = source + at[0], to = target + at[1], n](auto step_a, auto step_b) {
          for (int64_t i = 0; i < n; ++i) {
            To& sum = to[i * step_b];
            sum = Convert<To>(Convert<A>(sum) + Convert<A>(from[i * step_a]));
          }
        };
        if (steps[0] == 1 && steps[1] == 1) return run(One(), One());
        run(steps[0], steps[1]);
      });
    });
  });
}

LS_REGISTER(accumulate_slot, DeviceType::kCpu, AccumulateCpu);

}  // namespace
}  // namespace lockstep::cpu
