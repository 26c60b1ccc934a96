// A stable sort of positions by their keys, on the device.
#pragma once

#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"

namespace lockstep::cuda {

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
  __shared__ int count[kRadix];
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
  __shared__ int sums[kThreads];
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
  __shared__ int next[kRadix];
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

// keys[i] = the column of [outer, reduced, inner] in which positions[i] lies.
// Grid: one thread per position. No shared memory.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    ColumnsKernel(const int* positions, int n, int64_t reduced, int64_t inner, int* keys) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  const int64_t at = positions[i];
  keys[i] = static_cast<int>(at / (reduced * inner) * inner + at % inner);
}

}  // namespace internal

// A stable sort of the positions [0, n) by keys, a digit at a time, the lowest first. Nothing is
// read back to the host, and there are no atomics.
class RadixSort {
 public:
  // `name`, of the launches, must outlive this.
  RadixSort(const LaunchName& name, Stream stream, int64_t n)
      : name_(name), stream_(stream), n_(static_cast<int>(n)) {
    LS_CHECK(n <= kMost, name.name(), ": ", n, " positions are more than CUDA can sort (2^30)");
    tiles_ = static_cast<int>(DivideUp(n, internal::kRadixTile));
    counts_ = Empty(internal::kRadix * tiles_);
    for (Tensor* x : {&keys_, &places_, &spare_keys_, &spare_places_}) *x = Empty(n);
  }

  // By the key id[i] - first of place i, where that is in [0, rows), else after all others, with
  // the key `rows`. Makes as many passes as `rows` has bytes: where all keys are within [0, rows),
  // rows - 1 is enough. `sorted`: places hold what an earlier sort has put there, else place i
  // holds position i.
  template <class I>
  void By(const I* id, int64_t first, int64_t rows, bool sorted) {
    LS_CHECK(rows < kMost, name_.name(), ": ", rows,
             " different keys are more than CUDA can sort (2^30)");
    Pass(id, sorted ? Data<int>(places_) : nullptr, first, static_cast<int>(rows), 0);
    for (int shift = internal::kRadixBits; rows >> shift != 0; shift += internal::kRadixBits) {
      Pass(static_cast<const int*>(Data<int>(keys_)), Data<int>(places_), 0, static_cast<int>(rows),
           shift);
    }
  }
  // By the column of [outer, reduced, inner] in which a position lies, after another sort. A
  // template, so that its kernel is compiled only where it is used.
  template <int kThreads = kElementwiseThreads>
  void ByColumn(int64_t reduced, int64_t inner) {
    const int64_t columns = n_ / reduced;
    if (columns <= 1) return;
    const Tensor keys = Empty(n_);
    Launch(name_, internal::ColumnsKernel<kThreads>, Blocks(n_, kThreads), kThreads, 0, stream_,
           Data<int>(places_), n_, reduced, inner, Data<int>(keys));
    By(static_cast<const int*>(Data<int>(keys)), 0, columns - 1, true);
  }

  const Tensor& keys() const { return keys_; }      // i32 [n], of the last sort
  const Tensor& places() const { return places_; }  // i32 [n]

 private:
  static constexpr int64_t kMost = int64_t{1} << 30;

  Tensor Empty(int64_t size) const { return Tensor::Empty({size}, DType::kI32, stream_.device); }

  template <class I>
  void Pass(const I* from, const int* positions, int64_t first, int rows, int shift) {
    using namespace internal;
    Launch(name_, RadixCountKernel<I>, tiles_, kWarpSize, 0, stream_, from, n_, first, rows, shift,
           Data<int>(counts_));
    Launch(name_, RadixScanKernel<kRadixScanThreads>, tiles_ > 0 ? 1 : 0, kRadixScanThreads, 0,
           stream_, Data<int>(counts_), kRadix * tiles_);
    Launch(name_, RadixScatterKernel<I>, tiles_, kWarpSize, 0, stream_, from, positions, n_, first,
           rows, shift, Data<int>(counts_), Data<int>(spare_keys_), Data<int>(spare_places_));
    std::swap(keys_, spare_keys_);
    std::swap(places_, spare_places_);
  }

  const LaunchName& name_;
  Stream stream_;
  int n_, tiles_;
  Tensor counts_, keys_, places_, spare_keys_, spare_places_;
};

}  // namespace lockstep::cuda
