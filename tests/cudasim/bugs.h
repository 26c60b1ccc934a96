// Kernels with one bug each, which the detectors must catch, and the same kernels without it.
#pragma once

#include <cuda_runtime.h>

namespace lockstep {

enum class PlantedBug {
  kBarrierInHalfTheThreads,  // some threads run to their end
  kExitBeforeBarrier,        // threads without work return early
  kLoopBarrierUneven,        // threads iterate different numbers of times over a loop with a
                             // barrier
  kShuffleInBranch,          // half a warp shuffles with the full mask
  kShuffleTwoPlaces,         // the warp's halves at two shuffles, both with the full mask
  kShuffleFromAbsentLane,    // the source is not in the mask
  kShuffleNotInMask,         // the caller is not in the mask
  kGlobalPastEnd,            // x[n]
  kGlobalPastEndWrite,       // y[n]
  kGlobalBeforeBegin,        // x[-1]
  kSharedPastEndRead,        // of a static array
  kDynamicSharedPastEnd,
  kMissingBarrier,           // reads another warp's element of shared memory at once
  kMissingBarrierAfterRead,  // overwrites shared memory that others have still to read
  kMissingSyncWarp,          // reads another lane's element at once
  kMissingAsyncWait,         // reads cp.async's target before the wait
  kMissingAsyncBarrier,      // reads another thread's cp.async after waiting only for its own
  kMisalignedVector,         // float4 at an address of 4 mod 16
  kMisalignedAsync,
  kUninitialisedShared,
  kUninitialisedGlobal,
  kGlobalRaceBetweenBlocks,  // two blocks write the same element
  kGlobalRaceInBlock,        // thread i reads what thread i+1 writes
  kLastBlockWithoutFence,    // counts first, publishes without a fence
  kTrap,
  kAssert,
};

// Runs the kernel with the bug on device memory x[n], y[n] (floats, n >= 256; x is 0, 1, 2, ...);
// blocks of 64 threads. Afterwards y[0..63] is what the kernel computed: without the bug y[i] = 2.
cudaError_t RunPlanted(PlantedBug bug, bool planted, float* x, float* y, int n);

}  // namespace lockstep
