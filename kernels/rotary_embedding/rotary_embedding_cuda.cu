#include <cmath>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/rotary_embedding/rotary_embedding.h"

namespace lockstep::cuda {
namespace {

// Turns the pairs of the first `rotated` heads, and copies the others up to `written`: all, or none
// where y is x. One pass over memory: a thread has N neighbouring pairs of a head, that is, a pack
// of either half.
// Where positions are given, one outside [0, rows) cannot be reported to the host: its heads are
// NaN.
// Grid: one thread per group of pairs of [B, T, written]. No shared memory; every element by one
// thread.
template <int N, bool kAligned, class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    RotaryKernel(const T* x, const float* table, int64_t rows, const int32_t* positions,
                 int64_t first_position, int64_t groups, int64_t length, int64_t heads, int64_t d,
                 int64_t rotated, int64_t written, float sign, T* y) {
  const int64_t index = GlobalThread();
  if (index >= groups) return;
  const int64_t half = d / 2, per_head = half / N;
  const int64_t i = index % per_head * N, head = index / per_head % written;
  const int64_t row = index / per_head / written;  // of [B, T]
  const int64_t at = (row * heads + head) * d + i;
  const auto load = [](const auto* p) {
    if constexpr (kAligned) {
      return Load<std::decay_t<decltype(*p)>, N>(p);
    } else {
      return *p;
    }
  };
  const auto store = [](T* p, const auto& v) {
    if constexpr (kAligned) {
      Store(p, v);
    } else {
      *p = v;
    }
  };
  const auto element = [](auto& v, int k) -> auto& {
    if constexpr (kAligned) {
      return v[k];
    } else {
      return v;
    }
  };
  auto p = load(x + at), q = load(x + at + half);
  if (head < rotated) {
    const int64_t position = positions != nullptr ? positions[row] : first_position + row % length;
    const bool known = position >= 0 && position < rows;
    const float* angles = table + (known ? position : 0) * d + i;
    const auto cosines = load(angles), sines = load(angles + half);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float u = ToFloat(element(p, k)), v = ToFloat(element(q, k));
      const float c = known ? element(cosines, k) : NAN, s = sign * element(sines, k);
      element(p, k) = Convert<T>(u * c - v * s);
      element(q, k) = Convert<T>(v * c + u * s);
    }
  }
  store(y + at, p);
  store(y + at + half, q);
}

void RotaryEmbeddingCuda(Stream stream, const RotaryEmbeddingArgs& args) {
  if (args.x.numel() == 0) return;
  DispatchFloat("rotary_embedding", args.x.dtype(), [&]<class T>(TypeTag<T>) {
    const int64_t length = args.x.dim(1), heads = args.x.dim(2), d = args.x.dim(3);
    const int64_t written = args.x.raw_data() == args.y.raw_data() ? args.rotated : heads;
    const T* x = Data<T>(args.x);
    T* y = Data<T>(args.y);
    const float* table = Data<float>(args.table);
    const bool is_aligned = d / 2 % kPackSize<T> == 0 && AllAligned16(x, y, table);
    DispatchBool(is_aligned, [&](auto aligned) {
      constexpr bool kAligned = decltype(aligned)::value;
      constexpr int N = kAligned ? kPackSize<T> : 1;
      const int64_t groups = args.x.numel() / heads * written / 2 / N;
      LaunchThreads({"rotary_embedding", args.x, args.table, args.positions},
                    RotaryKernel<N, kAligned, T>, groups, stream, x, table, args.table.dim(0),
                    args.positions.defined() ? Data<int32_t>(args.positions) : nullptr,
                    args.first_position, groups, length, heads, d, args.rotated, written,
                    args.backwards ? -1.0f : 1.0f, y);
    });
  });
}

LS_REGISTER(rotary_embedding, DeviceType::kCuda, RotaryEmbeddingCuda);

}  // namespace
}  // namespace lockstep::cuda
