// cp.async: copies from global to shared memory that a thread issues and waits for later.
//   CpAsync<16>(&tile[i], x + i);  ...  CpAsyncCommit();  ...  CpAsyncWait<0>(); __syncthreads();
// The wait is for the thread's own copies: other threads see them after a barrier.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep::cuda {

// Copies kBytes (4, 8 or 16), to which both sides are aligned. source_bytes of them are read and
// the rest becomes zero: 0 fills with zeros without reading the source.
template <int kBytes>
__device__ inline void CpAsync(void* shared, const void* global, int source_bytes = kBytes) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const auto source = __cvta_generic_to_global(global);
  if constexpr (kBytes == 16) {
    // 16 bytes can bypass L1.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(target), "l"(source), "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(target), "l"(source), "n"(kBytes), "r"(source_bytes)
                 : "memory");
  }
}

// Closes the group of this thread's copies since the last commit.
__device__ inline void CpAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the newest kPending groups of this thread are still in flight.
template <int kPending>
__device__ inline void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace lockstep::cuda
