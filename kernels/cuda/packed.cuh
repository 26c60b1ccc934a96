// 16-byte accesses to global and shared memory: what a memory-bound kernel needs to reach the
// memory's speed.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/types.cuh"

namespace lockstep::cuda {

// N elements in registers, read and written 16 bytes at a time: 4 f32 or 8 16-bit floats, unless N
// says more.
template <class T, int N = 16 / static_cast<int>(sizeof(T))>
struct Packed {
  static constexpr int kSize = N;
  static constexpr int kAccesses = N * static_cast<int>(sizeof(T)) / 16;
  static_assert(kAccesses >= 1 && N * sizeof(T) % 16 == 0, "a pack is whole 16-byte accesses");

  T v[N];

  __device__ T& operator[](int i) {
    assert(0 <= i && i < N);
    return v[i];
  }
  __device__ const T& operator[](int i) const {
    assert(0 <= i && i < N);
    return v[i];
  }
};

// How many elements one 16-byte access carries.
template <class T>
inline constexpr int kPackSize = 16 / static_cast<int>(sizeof(T));

// Whether packs can start at p, which is not given for slices of tensors.
inline bool IsAligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
template <class... P>
bool AllAligned16(const P*... p) {
  return (IsAligned16(p) && ...);
}

// p is aligned to 16 bytes. Global or shared memory.
template <class T, int N = kPackSize<T>>
__device__ inline Packed<T, N> Load(const T* p) {
  Packed<T, N> x;
#pragma unroll
  for (int i = 0; i < Packed<T, N>::kAccesses; ++i) {
    const uint4 raw = reinterpret_cast<const uint4*>(p)[i];
    memcpy(reinterpret_cast<unsigned char*>(x.v) + 16 * i, &raw, 16);
  }
  return x;
}
// Global memory. nvcc takes plain stores of 16 bytes apart, now and then, into four of 4, with four
// times the traffic; this is one instruction.
template <class T, int N>
__device__ inline void Store(T* p, const Packed<T, N>& x) {
#pragma unroll
  for (int i = 0; i < Packed<T, N>::kAccesses; ++i) {
    uint4 raw;
    memcpy(&raw, reinterpret_cast<const unsigned char*>(x.v) + 16 * i, 16);
    __stwb(reinterpret_cast<uint4*>(p) + i, raw);
  }
}
// Shared memory.
template <class T, int N>
__device__ inline void StoreShared(T* p, const Packed<T, N>& x) {
#pragma unroll
  for (int i = 0; i < Packed<T, N>::kAccesses; ++i) {
    memcpy(reinterpret_cast<uint4*>(p) + i, reinterpret_cast<const unsigned char*>(x.v) + 16 * i,
           16);
  }
}

// Only the first n elements, from memory of any alignment; the others are `otherwise`: for the ends
// of rows, and for views that start anywhere.
template <class T, int N = kPackSize<T>>
__device__ inline Packed<T, N> LoadSome(const T* p, int n, T otherwise) {
  Packed<T, N> x;
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = i < n ? p[i] : otherwise;
  return x;
}
template <class T, int N>
__device__ inline void StoreSome(T* p, const Packed<T, N>& x, int n) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < n) p[i] = x[i];
  }
}

}  // namespace lockstep::cuda
