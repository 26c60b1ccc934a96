#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/mix/mix.h"

namespace lockstep::cuda {
namespace {

struct Mixed {
  const float *a, *b;
  __device__ float operator()(float x, float z) const { return fmaf(*a, x, *b * z); }
};

void MixForwardCuda(Stream stream, const Tensor& x, const Tensor& a, const Tensor& z,
                    const Tensor& b, const Tensor& y) {
  DispatchFloat("mix", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T *first = Data<T>(x), *second = Data<T>(z);
    Elementwise({"mix_forward", x}, stream, x.numel(), std::false_type(),
                Mixed{Data<float>(a), Data<float>(b)}, Data<T>(y), first, second);
  });
}

constexpr int kThreads = 256, kPacks = 4;  // packs of a thread

template <class T>
struct MixBackwardRow {
  int64_t n;
  bool packed;  // all pointers are aligned to 16 bytes
  const T *x, *z, *dy;
  const float *a, *b;
  T *dx, *dz;      // null: not needed
  float* partial;  // null, or [blocks, 2]
};

// dx = a dy and dz = b dy, and this block's sums of dy x and dy z. One pass over memory.
// Grid: a block to kThreads kPacks packs. Shared memory: one f32 per warp. Deterministic: the order
// of sums depends only on n and the dtype.
template <class T>
__global__ void __launch_bounds__(kThreads) MixBackwardKernel(MixBackwardRow<T> in) {
  constexpr int N = kPackSize<T>;
  __shared__ float scratch[kThreads / kWarpSize];
  const float a = *in.a, b = *in.b;
  float of_x = 0, of_z = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t at =
        ((static_cast<int64_t>(blockIdx.x) * kPacks + k) * kThreads + threadIdx.x) * N;
    const int count = CountWithin<N>(at, in.n);
    const bool packed = in.packed && count == N;
    const auto load = [&](const T* p) {
      return packed ? Load<T, N>(p + at) : LoadSome<T, N>(p + at, count, Convert<T>(0.0f));
    };
    const auto store = [&](T* p, const Packed<T, N>& v) {
      if (packed) {
        Store(p + at, v);
      } else {
        StoreSome(p + at, v, count);
      }
    };
    const Packed<T, N> dy = load(in.dy), x = load(in.x), z = load(in.z);
    Packed<T, N> dx, dz;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = ToFloat(dy[i]);
      of_x += g * ToFloat(x[i]);
      of_z += g * ToFloat(z[i]);
      dx[i] = Convert<T>(a * g);
      dz[i] = Convert<T>(b * g);
    }
    if (in.dx != nullptr) store(in.dx, dx);
    if (in.dz != nullptr) store(in.dz, dz);
  }
  if (in.partial == nullptr) return;
  of_x = BlockSum<kThreads>(of_x, scratch);
  of_z = BlockSum<kThreads>(of_z, scratch);
  if (threadIdx.x == 0) {
    in.partial[2 * blockIdx.x] = of_x;
    in.partial[2 * blockIdx.x + 1] = of_z;
  }
}

void MixBackwardCuda(Stream stream, const MixBackwardArgs& args) {
  DispatchFloat("mix", args.x.dtype(), [&]<class T>(TypeTag<T>) {
    MixBackwardRow<T> in{};
    in.n = args.x.numel();
    in.x = Data<T>(args.x);
    in.z = Data<T>(args.z);
    in.dy = Data<T>(args.dy);
    in.a = Data<float>(args.a);
    in.b = Data<float>(args.b);
    in.dx = DataOrNull<T>(args.dx);
    in.dz = DataOrNull<T>(args.dz);
    in.packed = AllAligned16(in.x, in.z, in.dy, in.dx, in.dz);
    const unsigned blocks = Blocks(in.n, int64_t{kThreads} * kPacks * kPackSize<T>);
    const bool sums = args.sums.defined();
    const Tensor partial =
        Tensor::Empty({sums ? int64_t{blocks} : 0, 2}, DType::kF32, args.x.device());
    if (sums) in.partial = Data<float>(partial);
    Launch({"mix_backward", args.x}, MixBackwardKernel<T>, blocks, kThreads, 0, stream, in);
    if (sums) {
      ColumnSums("mix_backward", stream, in.partial, blocks, 2, 2, args.sums, false);
    }
  });
}

LS_REGISTER(mix_forward, DeviceType::kCuda, MixForwardCuda);
LS_REGISTER(mix_backward, DeviceType::kCuda, MixBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
