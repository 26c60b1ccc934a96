#include "kernels/cpu.h"
#include "kernels/rotary_embedding/rotary_embedding.h"

namespace lockstep::cpu {
namespace {

// One head; sign -1 turns backwards.
template <bool accumulate, class T>
void Turn(const T* x, const Acc<T>* cosines, const Acc<T>* sines, Acc<T> sign, int64_t half, T* y) {
  using A = Acc<T>;
  for (int64_t i = 0; i < half; ++i) {
    const A a = Convert<A>(x[i]), b = Convert<A>(x[i + half]), c = cosines[i], s = sign * sines[i];
    const A p = a * c - b * s, q = b * c + a * s;
    y[i] = Convert<T>(accumulate ? Convert<A>(y[i]) + p : p);
    y[i + half] = Convert<T>(accumulate ? Convert<A>(y[i + half]) + q : q);
  }
}

// The n elements of the heads that keep their place.
template <bool accumulate, class T>
void Keep(const T* x, int64_t n, T* y) {
  using A = Acc<T>;
  for (int64_t i = 0; i < n; ++i) {
    y[i] = accumulate ? Convert<T>(Convert<A>(y[i]) + Convert<A>(x[i])) : x[i];
  }
}

template <bool accumulate, class T>
void TurnAll(const RotaryEmbeddingArgs& args) {
  using A = Acc<T>;
  const int64_t length = args.x.dim(1), heads = args.x.dim(2), d = args.x.dim(3), half = d / 2;
  const int64_t width = heads * d, rotated = args.rotated;
  const T* in = args.x.data<T>();
  T* out = args.y.data<T>();
  const A* table = args.table.data<A>() + args.first_position * d;
  const A sign = args.backwards ? A(-1) : A(1);
  ParallelFor(
      args.x.dim(0) * length, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(width, 1)),
      [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* x = in + row * width;
          T* y = out + row * width;
          const A* cosines = table + row % length * d;
          for (int64_t head = 0; head < rotated; ++head) {
            Turn<accumulate>(x + head * d, cosines, cosines + half, sign, half, y + head * d);
          }
          Keep<accumulate>(x + rotated * d, width - rotated * d, y + rotated * d);
        }
      });
}

void RotaryEmbeddingCpu(Stream, const RotaryEmbeddingArgs& args) {
  if (args.x.numel() == 0) return;
  DispatchFloat("rotary_embedding", args.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (args.accumulate) {
      TurnAll<true, T>(args);
    } else {
      TurnAll<false, T>(args);
    }
  });
}

LS_REGISTER(rotary_embedding, DeviceType::kCpu, RotaryEmbeddingCpu);

}  // namespace
}  // namespace lockstep::cpu
