// Rows of a matrix, read and written in packs of 16 bytes by the threads of a block.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/packed.cuh"

namespace lockstep::cuda {

// Whether each row of c elements of these matrices can be accessed in packs. Null pointers are
// fine.
template <class T, class... P>
bool AlignedRows(int64_t c, const T* first, const P*... more) {
  return c % kPackSize<T> == 0 && AllAligned16(first, more...);
}

// The N elements from `at` on in a row of c: by 16-byte accesses where kAligned, else one by one
// with zeros beyond the end. A thread holds the same elements either way, so sums over a row have
// the same bits for any alignment.
template <bool kAligned, int N, class T>
__device__ inline Packed<T, N> LoadRow(const T* row, int64_t at, int64_t c) {
  if constexpr (kAligned) {
    return Load<T, N>(row + at);
  } else {
    return LoadSome<T, N>(row + at, CountWithin<N>(at, c), Convert<T>(0.0f));
  }
}
template <bool kAligned, int N, class T>
__device__ inline void StoreRow(T* row, int64_t at, int64_t c, const Packed<T, N>& x) {
  if constexpr (kAligned) {
    Store(row + at, x);
  } else {
    StoreSome(row + at, x, CountWithin<N>(at, c));
  }
}

// Calls f(k, at) for the thread's packs of N elements in a row of c: number k < Held, whose content
// the caller may keep in registers because k is known at compile time; and k = Held for all others.
template <int Threads, int N, int Held, class F>
__device__ inline void ForEachPack(int64_t c, const F& f) {
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
#pragma unroll
  for (int k = 0; k < Held; ++k) {
    const int64_t at = first + static_cast<int64_t>(k) * Threads * N;
    if (at < c) f(k, at);
  }
  for (int64_t at = first + static_cast<int64_t>(Held) * Threads * N; at < c; at += Threads * N) {
    f(Held, at);
  }
}

// Calls f(i) for the elements i of a pack at `at` that lie in the row.
template <bool kAligned, int N, class F>
__device__ inline void ForEachElement(int64_t at, int64_t c, const F& f) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (kAligned || at + i < c) f(i);
  }
}

// Calls f(std::integral_constant<int, threads>) with a block's size for rows of `packs` packs.
template <class F>
void DispatchRowThreads(int64_t packs, F&& f) {
  if (packs <= 32) return f(std::integral_constant<int, 32>());
  f(std::integral_constant<int, 128>());
}

// The block size for rows of c elements in packs of n, for kernels without needs of their own.
inline unsigned RowThreads(int64_t c, int n) {
  return static_cast<unsigned>(std::clamp<int64_t>(DivideUp(DivideUp(c, n), 32) * 32, 32, 256));
}

}  // namespace lockstep::cuda
