// Fills core's fill slot: every element becomes a value. Core declares it (core/slots.h).
#include "core/slots.h"
#include "kernels/cpu/elementwise.h"

namespace lockstep::cpu {
namespace {

void FillCpu(Stream, const Tensor& x, double value) {
  DispatchAll("fill", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* data = x.data<T>();
    const T v = Convert<T>(value);
    ForEachRun(x, x, [=](int64_t at, int64_t, int64_t n, int64_t step, int64_t) {
      for (int64_t i = 0; i < n; ++i) data[at + i * step] = v;
    });
  });
}

LS_REGISTER(fill_slot, DeviceType::kCpu, FillCpu);

}  // namespace
}  // namespace lockstep::cpu
