#include <algorithm>

#include "kernels/cpu/elementwise.h"
#include "kernels/rotary_embedding/rotary_embedding.h"

namespace lockstep::cpu {
namespace {

// One head, by its halves; sign -1 turns backwards. p and q may be a and b, which compilers can see
// only in TurnInPlace.
template <class T>
void Turn(const T* a, const T* b, const Acc<T>* cosines, const Acc<T>* sines, Acc<T> sign,
          int64_t half, T* p, T* q) {
  using A = Acc<T>;
  for (int64_t i = 0; i < half; ++i) {
    const A u = Convert<A>(a[i]), v = Convert<A>(b[i]), c = cosines[i], s = sign * sines[i];
    p[i] = Convert<T>(u * c - v * s);
    q[i] = Convert<T>(v * c + u * s);
  }
}
template <class T>
[[gnu::noinline]] void TurnInPlace(T* a, T* b, const Acc<T>* cosines, const Acc<T>* sines,
                                   Acc<T> sign, int64_t half) {
  Turn<T>(a, b, cosines, sines, sign, half, a, b);
}

template <class T>
void TurnAll(const RotaryEmbeddingArgs& args) {
  using A = Acc<T>;
  const int64_t length = args.x.dim(1), heads = args.x.dim(2), d = args.x.dim(3), half = d / 2;
  const int64_t width = heads * d, rotated = args.rotated;
  const T* in = args.x.data<T>();
  T* out = args.y.data<T>();
  const A* table = args.table.data<A>();
  const int64_t first_position = args.first_position;
  const int32_t* positions = args.positions.defined() ? args.positions.data<int32_t>() : nullptr;
  const A sign = args.backwards ? A(-1) : A(1);
  ParallelForEach(args.x.dim(0) * length, GrainOf(width), [=](int64_t row) {
    const T* x = in + row * width;
    T* y = out + row * width;
    const int64_t position = positions != nullptr ? positions[row] : first_position + row % length;
    const A* cosines = table + position * d;
    for (int64_t head = 0; head < rotated; ++head) {
      const T* a = x + head * d;
      T* p = y + head * d;
      if (a == p) {
        TurnInPlace<T>(p, p + half, cosines, cosines + half, sign, half);
      } else {
        Turn<T>(a, a + half, cosines, cosines + half, sign, half, p, p + half);
      }
    }
    if (x != y) std::copy(x + rotated * d, x + width, y + rotated * d);
  });
}

void RotaryEmbeddingCpu(Stream, const RotaryEmbeddingArgs& args) {
  if (args.x.numel() == 0) return;
  DispatchFloat("rotary_embedding", args.x.dtype(), [&]<class T>(TypeTag<T>) { TurnAll<T>(args); });
}

LS_REGISTER(rotary_embedding, DeviceType::kCpu, RotaryEmbeddingCpu);

}  // namespace
}  // namespace lockstep::cpu
