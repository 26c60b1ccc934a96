#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/embedding/sorted_places.cuh"
#include "kernels/expert_dispatch/expert_dispatch.h"

// No atomics: each element of a result is made by one thread, its sum in the order of the slots.

namespace lockstep::cuda {
namespace {

// The order's tensors from the sorted pairs. Grid: one thread per pair or offset.
__global__ void __launch_bounds__(kElementwiseThreads)
    ExpertOrderKernel(const int* starts, const int* positions, int64_t n, int64_t e, int* offsets,
                      int* rows, int* places) {
  const int64_t i = GlobalThread();
  if (i <= e) offsets[i] = starts[i];
  if (i >= n) return;
  rows[i] = positions[i];
  places[positions[i]] = static_cast<int>(i);
}

// Grid: one block per row of the result; a thread takes packs. No shared memory.
template <bool kAligned, bool accumulate, class T>
__global__ void GatherRowsKernel(const T* from, const float* gates, const int* rows, int k,
                                 int64_t c, T* to) {
  constexpr int N = kPackSize<T>;
  const int pair = rows[blockIdx.x];
  const float gate = gates != nullptr ? gates[pair] : 1.0f;
  const T* x = from + static_cast<int64_t>(pair / k) * c;
  T* y = to + blockIdx.x * c;
  for (int64_t at = threadIdx.x * N; at < c; at += static_cast<int64_t>(blockDim.x) * N) {
    Packed<T> v = LoadRow<kAligned, N>(x, at, c), old;
    if constexpr (accumulate) old = LoadRow<kAligned, N>(y, at, c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float value = gate * ToFloat(v[i]);
      v[i] = Convert<T>(accumulate ? ToFloat(old[i]) + value : value);
    }
    StoreRow<kAligned>(y, at, c, v);
  }
}

// Grid: one block per token; a thread takes packs. No shared memory.
template <bool kAligned, bool accumulate, class T>
__global__ void SumSlotsKernel(const T* from, const float* gates, const int* places, int k,
                               int64_t c, T* to) {
  constexpr int N = kPackSize<T>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * k;
  T* y = to + blockIdx.x * c;
  for (int64_t at = threadIdx.x * N; at < c; at += static_cast<int64_t>(blockDim.x) * N) {
    float sum[N] = {};
    for (int slot = 0; slot < k; ++slot) {
      const float gate = gates != nullptr ? gates[first + slot] : 1.0f;
      const Packed<T> x =
          LoadRow<kAligned, N>(from + static_cast<int64_t>(places[first + slot]) * c, at, c);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = fmaf(gate, ToFloat(x[i]), sum[i]);
    }
    Packed<T> out;
    if constexpr (accumulate) out = LoadRow<kAligned, N>(y, at, c);
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = Convert<T>(accumulate ? ToFloat(out[i]) + sum[i] : sum[i]);
    StoreRow<kAligned>(y, at, c, out);
  }
}

// Grid: one warp per pair, eight per block. No shared memory. A lane adds its packs in order, then
// the warp adds its lanes in a fixed order.
constexpr int kPairs = 8;

template <bool kAligned, bool accumulate, class T>
__global__ void GateGradientsKernel(const T* rows, const T* dy, const int* places, int64_t pairs,
                                    int k, int64_t c, float* dgates) {
  constexpr int N = kPackSize<T>;
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * kPairs + WarpOfBlock();
  if (pair >= pairs) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const T *x = rows + static_cast<int64_t>(places[pair]) * c, *g = dy + pair / k * c;
  float sum = 0;
  for (int64_t at = lane * N; at < c; at += kWarpSize * N) {
    const Packed<T> a = LoadRow<kAligned, N>(x, at, c), b = LoadRow<kAligned, N>(g, at, c);
#pragma unroll
    for (int i = 0; i < N; ++i) sum = fmaf(ToFloat(a[i]), ToFloat(b[i]), sum);
  }
  __syncwarp();
  sum = WarpSum(sum);
  if (lane == 0) dgates[pair] = accumulate ? dgates[pair] + sum : sum;
}

__global__ void CountRowsKernel(const int* offsets, int64_t e, int64_t* load) {
  const int64_t i = GlobalThread();
  if (i < e) load[i] += offsets[i + 1] - offsets[i];
}

void SortByExpertCuda(Stream stream, const SortByExpertArgs& args) {
  const int64_t n = args.experts.numel(), e = args.offsets.numel() - 1;
  const SortedPlaces sorted = SortPlaces(stream, args.experts.View({n}), 0, e);
  LaunchThreads({"sort_by_expert", args.experts}, ExpertOrderKernel, std::max(n, e + 1), stream,
                Data<int>(sorted.start), Data<int>(sorted.positions), n, e, Data<int>(args.offsets),
                Data<int>(args.rows), Data<int>(args.places));
}

void GatherRowsCuda(Stream stream, const GatherRowsArgs& args) {
  const int64_t c = args.from.dim(1);
  if (args.to.numel() == 0) return;
  DispatchFloat("gather_rows", args.from.dtype(), [&]<class T>(TypeTag<T>) {
    const T* from = Data<T>(args.from);
    T* to = Data<T>(args.to);
    DispatchBool(AlignedRows(c, from, to), [&](auto aligned) {
      DispatchBool(args.accumulate, [&](auto accumulate) {
        Launch({"gather_rows", args.from, args.to},
               GatherRowsKernel<decltype(aligned)::value, decltype(accumulate)::value, T>,
               Blocks(args.rows.numel(), 1), RowThreads(c, kPackSize<T>), 0, stream, from,
               DataOrNull<float>(args.gates), Data<int>(args.rows), static_cast<int>(args.k), c,
               to);
      });
    });
  });
}

void SumSlotsCuda(Stream stream, const SumSlotsArgs& args) {
  const int64_t c = args.from.dim(1);
  if (args.to.numel() == 0) return;
  DispatchFloat("sum_slots", args.from.dtype(), [&]<class T>(TypeTag<T>) {
    const T* from = Data<T>(args.from);
    T* to = Data<T>(args.to);
    DispatchBool(AlignedRows(c, from, to), [&](auto aligned) {
      DispatchBool(args.accumulate, [&](auto accumulate) {
        Launch({"sum_slots", args.from, args.to},
               SumSlotsKernel<decltype(aligned)::value, decltype(accumulate)::value, T>,
               Blocks(args.to.dim(0), 1), RowThreads(c, kPackSize<T>), 0, stream, from,
               DataOrNull<float>(args.gates), Data<int>(args.places),
               static_cast<int>(args.places.dim(1)), c, to);
      });
    });
  });
}

void GateGradientsCuda(Stream stream, const GateGradientsArgs& args) {
  const int64_t c = args.rows.dim(1), pairs = args.places.numel();
  DispatchFloat("gate_gradients", args.rows.dtype(), [&]<class T>(TypeTag<T>) {
    const T *rows = Data<T>(args.rows), *dy = Data<T>(args.dy);
    DispatchBool(AlignedRows(c, rows, dy), [&](auto aligned) {
      DispatchBool(args.accumulate, [&](auto accumulate) {
        Launch({"gate_gradients", args.rows, args.dy},
               GateGradientsKernel<decltype(aligned)::value, decltype(accumulate)::value, T>,
               Blocks(pairs, kPairs), kPairs * kWarpSize, 0, stream, rows, dy,
               Data<int>(args.places), pairs, static_cast<int>(args.places.dim(1)), c,
               Data<float>(args.dgates));
      });
    });
  });
}

void CountRowsCuda(Stream stream, const Tensor& offsets, const Tensor& load) {
  LaunchThreads({"count_rows", offsets}, CountRowsKernel, load.numel(), stream, Data<int>(offsets),
                load.numel(), Data<int64_t>(load));
}

LS_REGISTER(sort_by_expert, DeviceType::kCuda, SortByExpertCuda);
LS_REGISTER(gather_rows, DeviceType::kCuda, GatherRowsCuda);
LS_REGISTER(sum_slots, DeviceType::kCuda, SumSlotsCuda);
LS_REGISTER(gate_gradients, DeviceType::kCuda, GateGradientsCuda);
LS_REGISTER(count_rows, DeviceType::kCuda, CountRowsCuda);

}  // namespace
}  // namespace lockstep::cuda
