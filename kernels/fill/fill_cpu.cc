// Fills core's fill slot: every element becomes a value. Core declares it (core/slots.h).
#include <algorithm>

#include "core/slots.h"
#include "kernels/cpu/strided.h"

namespace lockstep::cpu {
namespace {

void FillCpu(Stream, const Tensor& x, double value) {
  const StridedDims<1> dims(x.shape(), {x.strides()});
  DispatchAll("fill", x.dtype(), [&]<class T>(TypeTag<T>) {
    T* data = x.data<T>();
    const T v = Convert<T>(value);
    ForEachRun(x.numel(), dims, [=](const auto& at, int64_t n, const auto& steps) {
      if (steps[0] == 1) {
        std::fill_n(data + at[0], n, v);
      } else {
        for (int64_t i = 0; i < n; ++i) data[at[0] + i * steps[0]] = v;
      }
    });
  });
}

LS_REGISTER(fill_slot, DeviceType::kCpu, FillCpu);

}  // namespace
}  // namespace lockstep::cpu
