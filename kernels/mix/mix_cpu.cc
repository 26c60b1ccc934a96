#include <algorithm>
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/simd.h"
#include "kernels/mix/mix.h"

namespace lockstep::cpu {
namespace {

void MixForwardCpu(Stream, const Tensor& x, const Tensor& a, const Tensor& z, const Tensor& b,
                   const Tensor& y) {
  DispatchFloat("mix", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const A of_x = *a.data<A>(), of_z = *b.data<A>();
    const T *first = x.data<T>(), *second = z.data<T>();
    T* out = y.data<T>();
    VectorisedParallelFor<T>(x.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out[i] = Convert<T>(std::fma(of_x, Convert<A>(first[i]), of_z * Convert<A>(second[i])));
      }
    });
  });
}

template <class T>
void Scaled(const T* dy, Acc<T> factor, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Convert<T>(factor * Convert<Acc<T>>(dy[i]));
}

// A row of partial sums for each block, which are added in order.
template <class T>
void MixBackwardOf(const MixBackwardArgs& args) {
  using A = Acc<T>;
  constexpr int64_t kBlock = 4096;
  const int64_t n = args.x.numel(), blocks = DivideUp(n, kBlock);
  const A a = *args.a.data<A>(), b = *args.b.data<A>();
  const T *x = args.x.data<T>(), *z = args.z.data<T>(), *dy = args.dy.data<T>();
  T* dx = args.dx.defined() ? args.dx.data<T>() : nullptr;
  T* dz = args.dz.defined() ? args.dz.data<T>() : nullptr;
  const Tensor partials = Tensor::Empty({args.sums.defined() ? blocks : 0, 2}, DTypeOf<A>);
  A* partial = args.sums.defined() ? partials.data<A>() : nullptr;
  VectorisedParallelFor<T>(blocks, GrainOf(kBlock), [=](int64_t block, int64_t end) {
    for (; block < end; ++block) {
      const int64_t at = block * kBlock, count = std::min(kBlock, n - at);
      const T* g = dy + at;
      if (dx != nullptr) Scaled(g, a, count, dx + at);
      if (dz != nullptr) Scaled(g, b, count, dz + at);
      if (partial == nullptr) continue;
      const auto product = [&](const T* of) {
        return SumOver<A>(count,
                          [=](int64_t i) { return Convert<A>(g[i]) * Convert<A>(of[at + i]); });
      };
      partial[2 * block] = product(x);
      partial[2 * block + 1] = product(z);
    }
  });
  if (!args.sums.defined()) return;
  double sums[2] = {};
  for (int64_t i = 0; i < 2 * blocks; ++i) sums[i % 2] += partial[i];
  for (int i = 0; i < 2; ++i) args.sums.data<A>()[i] = static_cast<A>(sums[i]);
}

void MixBackwardCpu(Stream, const MixBackwardArgs& args) {
  DispatchFloat("mix", args.x.dtype(), [&]<class T>(TypeTag<T>) { MixBackwardOf<T>(args); });
}

LS_REGISTER(mix_forward, DeviceType::kCpu, MixForwardCpu);
LS_REGISTER(mix_backward, DeviceType::kCpu, MixBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
