#include "kernels/cpu/elementwise.h"
#include "kernels/one_hot/one_hot.h"

namespace lockstep::cpu {
namespace {

void OneHotCpu(Stream, const Tensor& index, const Tensor& y) {
  DispatchIndex("one_hot", index.dtype(), [&]<class I>(TypeTag<I>) {
    const I* from = index.data<I>();
    uint8_t* to = y.data<uint8_t>();
    const int64_t classes = y.dim(1);
    ParallelFor(index.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = from[i];
        LS_CHECK(at >= 0 && at < classes, "one_hot: the index ", at, " at position ", i,
                 " is outside of the ", classes, " classes");
        to[i * classes + at] = 1;
      }
    });
  });
}

LS_REGISTER(one_hot_slot, DeviceType::kCpu, OneHotCpu);

}  // namespace
}  // namespace lockstep::cpu
