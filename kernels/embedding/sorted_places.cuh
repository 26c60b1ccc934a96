// Where each id occurs: a stable sort of the positions of a text by id, on the device.
#pragma once

#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"

namespace lockstep::cuda {

// positions[start[v]] ... positions[start[v + 1] - 1] are the positions of id v, ascending.
struct SortedPlaces {
  Tensor positions;  // i32 [n]
  Tensor start;      // i32 [V + 1]
};

namespace internal {

inline constexpr int kRadixBits = 8, kRadix = 1 << kRadixBits;
inline constexpr int kRadixTile = 1024;  // keys that one warp takes in turn
inline constexpr int kRadixScanThreads = 256;

// The key of an id: its distance from the first, or v, after all others, if that is outside [0, v).
template <class I>
__device__ inline int RadixKey(I id, int64_t first, int v) {
  const int64_t key = id - first;
  return key >= 0 && key < v ? static_cast<int>(key) : v;
}

// The lanes of the warp that are active and have this lane's digit.
__device__ inline unsigned SameDigit(bool active, int digit) {
  unsigned same = __ballot_sync(kFullWarp, active);
#pragma unroll
  for (int bit = 0; bit < kRadixBits; ++bit) {
    const bool set = (digit >> bit & 1) != 0;
    const unsigned ones = __ballot_sync(kFullWarp, set);
    same &= set ? ones : ~ones;
  }
  return same;
}

// counts[digit, tile]: how many keys of a tile have the digit.
// Grid: one warp per tile. Shared memory: the tile's counts. Deterministic.
template <class I>
__global__ void __launch_bounds__(kWarpSize)
    RadixCountKernel(const I* keys, int n, int64_t first_id, int v, int shift, int* counts) {
  SHARED_ARRAY(int, count, kRadix);
  const int lane = static_cast<int>(threadIdx.x), tile = static_cast<int>(blockIdx.x);
  for (int digit = lane; digit < kRadix; digit += kWarpSize) count[digit] = 0;
  __syncwarp();
  for (int first = tile * kRadixTile; first < n && first < (tile + 1) * kRadixTile;
       first += kWarpSize) {
    const bool active = first + lane < n;
    const int digit =
        active ? RadixKey(keys[first + lane], first_id, v) >> shift & (kRadix - 1) : 0;
    const unsigned same = SameDigit(active, digit);
    if (active && (same & ((1u << lane) - 1)) == 0) count[digit] += __popc(same);
    __syncwarp();
  }
  const int tiles = static_cast<int>(gridDim.x);
  for (int digit = lane; digit < kRadix; digit += kWarpSize) {
    counts[digit * tiles + tile] = count[digit];
  }
}

// counts[i] becomes the sum of all before it.
// Grid: one block; thread t has the t-th run of neighbours. Shared memory: an i32 per thread.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) RadixScanKernel(int* counts, int n) {
  SHARED_ARRAY(int, sums, kThreads);
  const int t = static_cast<int>(threadIdx.x);
  const int run = (n + kThreads - 1) / kThreads;
  const int begin = Min(t * run, n), end = Min(begin + run, n);
  int sum = 0;
  for (int i = begin; i < end; ++i) sum += counts[i];
  sums[t] = sum;
  __syncthreads();
  for (int width = 1; width < kThreads; width *= 2) {
    const int before = t >= width ? sums[t - width] : 0;
    __syncthreads();
    sums[t] += before;
    __syncthreads();
  }
  int total = sums[t] - sum;
  for (int i = begin; i < end; ++i) {
    const int count = counts[i];
    counts[i] = total;
    total += count;
  }
}

// Moves keys and positions to where the scanned counts say; equal digits keep their order.
// positions null: key i is at position i. Grid and shared memory as in RadixCountKernel.
template <class I>
__global__ void __launch_bounds__(kWarpSize)
    RadixScatterKernel(const I* keys, const int* positions, int n, int64_t first_id, int v,
                       int shift, const int* offsets, int* sorted_keys, int* sorted_positions) {
  SHARED_ARRAY(int, next, kRadix);
  const int lane = static_cast<int>(threadIdx.x), tile = static_cast<int>(blockIdx.x);
  const int tiles = static_cast<int>(gridDim.x);
  for (int digit = lane; digit < kRadix; digit += kWarpSize) {
    next[digit] = offsets[digit * tiles + tile];
  }
  __syncwarp();
  for (int first = tile * kRadixTile; first < n && first < (tile + 1) * kRadixTile;
       first += kWarpSize) {
    const int i = first + lane;
    const bool active = i < n;
    const int key = active ? RadixKey(keys[i], first_id, v) : 0;
    const int digit = key >> shift & (kRadix - 1);
    const unsigned same = SameDigit(active, digit);
    const int rank = __popc(same & ((1u << lane) - 1));
    const int to = next[digit] + rank;
    __syncwarp();
    if (active) {
      sorted_keys[to] = key;
      sorted_positions[to] = positions != nullptr ? positions[i] : i;
      if (rank == 0) next[digit] += __popc(same);
    }
    __syncwarp();
  }
}

// start[k] = the first place of a key of at least k, for k in [0, v].
// Grid: one thread per place, and one past the last; a thread fills what its key skips.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    SegmentStartsKernel(const int* sorted_keys, int n, int v, int* start) {
  const int64_t i = GlobalThread();
  if (i > n) return;
  const int first = i == 0 ? 0 : sorted_keys[i - 1] + 1;
  const int last = i == n ? v : sorted_keys[i];
  for (int k = first; k <= last && k <= v; ++k) start[k] = static_cast<int>(i);
}

}  // namespace internal

// Sorts ids [n] for rows [first, first + v); others get no place. Nothing is read back to the host,
// and there are no atomics: as many passes of a radix sort as v has bytes.
inline SortedPlaces SortPlaces(Stream stream, const Tensor& ids, int64_t first, int64_t v) {
  using namespace internal;
  constexpr int64_t kMost = int64_t{1} << 30;
  LS_CHECK(ids.numel() <= kMost && v < kMost, "embedding: ", ids.numel(), " ids of ", v,
           " rows are more than the gradient on CUDA can sort (2^30)");
  const int n = static_cast<int>(ids.numel()), rows = static_cast<int>(v);
  const int tiles = static_cast<int>(CeilDiv(n, kRadixTile));
  const auto empty = [&](const Shape& shape) {
    return Tensor::Empty(shape, DType::kI32, ids.device());
  };
  const Tensor counts = empty({kRadix * tiles});
  Tensor keys = empty({n}), places = empty({n}), spare_keys = empty({n}), spare_places = empty({n});
  const auto pass = [&](const auto* from, const int* positions, int64_t first_id, int shift) {
    const LaunchName name("embedding_sort", ids);
    Launch(name, RadixCountKernel<std::remove_cvref_t<decltype(*from)>>, tiles, kWarpSize, 0,
           stream, from, n, first_id, rows, shift, Data<int>(counts));
    Launch(name, RadixScanKernel<kRadixScanThreads>, tiles > 0 ? 1 : 0, kRadixScanThreads, 0,
           stream, Data<int>(counts), kRadix * tiles);
    Launch(name, RadixScatterKernel<std::remove_cvref_t<decltype(*from)>>, tiles, kWarpSize, 0,
           stream, from, positions, n, first_id, rows, shift, Data<int>(counts),
           Data<int>(spare_keys), Data<int>(spare_places));
    std::swap(keys, spare_keys);
    std::swap(places, spare_places);
  };
  DispatchIndex("embedding", ids.dtype(), [&](auto tag) {
    pass(Data<typename decltype(tag)::type>(ids), nullptr, first, 0);
  });
  for (int shift = kRadixBits; rows >> shift != 0; shift += kRadixBits) {
    pass(static_cast<const int*>(Data<int>(keys)), Data<int>(places), 0, shift);
  }
  const Tensor start = empty({v + 1});
  Launch({"embedding_sort", ids}, SegmentStartsKernel<kElementwiseThreads>,
         Blocks(n + 1, kElementwiseThreads), kElementwiseThreads, 0, stream, Data<int>(keys), n,
         rows, Data<int>(start));
  return {places, start};
}

}  // namespace lockstep::cuda
