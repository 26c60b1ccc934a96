// Where each id occurs: a stable sort of the positions of a text by id, on the device.
#pragma once

#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/radix_sort.cuh"
#include "kernels/cuda/types.cuh"

namespace lockstep::cuda {

// positions[start[v]] ... positions[start[v + 1] - 1] are the positions of id v, ascending.
struct SortedPlaces {
  Tensor positions;  // i32 [n]
  Tensor start;      // i32 [V + 1]
  Tensor rows;       // i32 [n]: of the v of each of the positions; V where it has none
};

namespace internal {

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

// Sorts ids [n] for rows [first, first + v); others get no place.
inline SortedPlaces SortPlaces(Stream stream, const Tensor& ids, int64_t first, int64_t v) {
  const int64_t n = ids.numel();
  const LaunchName name("embedding_sort", ids);
  RadixSort sort(name, stream, n);
  DispatchIndex("embedding", ids.dtype(),
                [&]<class T>(TypeTag<T>) { sort.By(Data<T>(ids), first, v, false); });
  const Tensor start = Tensor::Empty({v + 1}, DType::kI32, ids.device());
  LaunchThreads(name, internal::SegmentStartsKernel<kElementwiseThreads>, n + 1, stream,
                Data<int>(sort.keys()), static_cast<int>(n), static_cast<int>(v), Data<int>(start));
  return {sort.places(), start, sort.keys()};
}

}  // namespace lockstep::cuda
