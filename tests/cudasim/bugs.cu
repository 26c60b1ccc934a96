// Assertions are compiled, whatever the build.
#undef NDEBUG
#include <cassert>

#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/shared.cuh"
#include "tests/cudasim/bugs.h"
#include "tests/cudasim/launch_kernel.cuh"

namespace lockstep {
namespace {

constexpr unsigned kAll = 0xffffffffu;

// Wrong if `bug` is set.

__global__ void BarrierInHalfTheThreadsKernel(bool bug, float* y) {
  if (!bug || threadIdx.x % 2 == 0) __syncthreads();
  y[threadIdx.x] = 2;
}

__global__ void ExitBeforeBarrierKernel(bool bug, float* y, int n) {
  if (static_cast<int>(threadIdx.x) >= (bug ? n - 3 : n)) return;
  __syncthreads();
  y[threadIdx.x] = 2;
}

__global__ void LoopBarrierUnevenKernel(bool bug, float* y) {
  const int rounds = bug ? static_cast<int>(threadIdx.x / 16) : 2;
  for (int i = 0; i < rounds; ++i) __syncthreads();
  y[threadIdx.x] = 2;
}

__global__ void ShuffleInBranchKernel(bool bug, float* y) {
  float value = 2;
  if (!bug || threadIdx.x % 32 < 16) value = __shfl_xor_sync(kAll, value, 1);
  __syncthreads();
  y[threadIdx.x] = value;
}

__global__ void ShuffleTwoPlacesKernel(bool bug, float* y) {
  float value = 2;
  if (bug && threadIdx.x % 32 < 16) {
    value = __shfl_xor_sync(kAll, value, 1);
  } else {
    value = __shfl_xor_sync(kAll, value, 1);
  }
  y[threadIdx.x] = value;
}

__global__ void ShuffleFromAbsentLaneKernel(bool bug, float* y) {
  float value = 2;
  if (threadIdx.x % 32 < 16) value = __shfl_xor_sync(0xffffu, value, bug ? 16 : 8);
  y[threadIdx.x] = value;
}

__global__ void ShuffleNotInMaskKernel(bool bug, float* y) {
  y[threadIdx.x] = __shfl_xor_sync(bug ? 0xffffu : kAll, 2.0f, 1);
}

__global__ void GlobalPastEndKernel(bool bug, const float* x, float* y, int n) {
  const int i = static_cast<int>(threadIdx.x) == 17 && bug ? n : 0;
  y[threadIdx.x] = x[i] * 0 + 2;
}

__global__ void GlobalPastEndWriteKernel(bool bug, float* y, int n) {
  y[threadIdx.x] = 2;
  if (threadIdx.x == 17 && bug) y[n] = 2;
}

__global__ void GlobalBeforeBeginKernel(bool bug, float* x, float* y) {
  if (threadIdx.x == 3) x[bug ? -1 : 0] = 0;
  y[threadIdx.x] = 2;
}

__global__ void SharedPastEndReadKernel(bool bug, float* y) {
  __shared__ float values[64];
  values[threadIdx.x] = 1;
  __syncthreads();
  const float value = values[threadIdx.x == 63 && bug ? 64 : threadIdx.x];
  y[threadIdx.x] = 1 + value;
}

__global__ void DynamicSharedPastEndKernel(bool bug, float* y) {
  DYN_SHARED(float, values);
  values[threadIdx.x == 60 && bug ? 67 : threadIdx.x] = 1;
  y[threadIdx.x] = 2;
}

__global__ void MissingBarrierKernel(bool bug, float* y) {
  __shared__ float values[64];
  values[threadIdx.x] = 2;
  if (!bug) __syncthreads();
  y[threadIdx.x] = values[63 - threadIdx.x];
}

__global__ void MissingBarrierAfterReadKernel(bool bug, float* y) {
  __shared__ float values[64];
  values[threadIdx.x] = 2;
  __syncthreads();
  const float value = values[63 - threadIdx.x];
  if (!bug) __syncthreads();
  values[threadIdx.x] = 5;
  y[threadIdx.x] = value;
}

__global__ void MissingSyncWarpKernel(bool bug, float* y) {
  __shared__ float values[64];
  values[threadIdx.x] = 2;
  if (!bug) __syncwarp();
  y[threadIdx.x] = values[threadIdx.x ^ 1];
}

__global__ void MissingAsyncWaitKernel(bool bug, const float* x, float* y) {
  __shared__ float values[64];
  cuda::CpAsync<4>(&values[threadIdx.x], &x[threadIdx.x]);
  cuda::CpAsyncCommit();
  if (!bug) cuda::CpAsyncWait<0>();
  y[threadIdx.x] = values[threadIdx.x] - static_cast<float>(threadIdx.x) + 2;
}

__global__ void MissingAsyncBarrierKernel(bool bug, const float* x, float* y) {
  __shared__ float values[64];
  cuda::CpAsync<4>(&values[threadIdx.x], &x[threadIdx.x]);
  cuda::CpAsyncCommit();
  cuda::CpAsyncWait<0>();
  if (!bug) __syncthreads();
  y[threadIdx.x] = values[63 - threadIdx.x] - static_cast<float>(63 - threadIdx.x) + 2;
}

__global__ void MisalignedVectorKernel(bool bug, const float* x, float* y) {
  const float4 value = *reinterpret_cast<const float4*>(x + (bug ? 1 : 0));
  y[threadIdx.x] = (value.x + value.y + value.z + value.w) * 0 + 2;
}

__global__ void MisalignedAsyncKernel(bool bug, const float* x, float* y) {
  __shared__ float4 values[64];
  cuda::CpAsync<16>(&values[threadIdx.x], x + (bug ? 1 : 0));
  cuda::CpAsyncCommit();
  cuda::CpAsyncWait<0>();
  y[threadIdx.x] = values[threadIdx.x].x * 0 + 2;
}

__global__ void UninitialisedSharedKernel(bool bug, float* y) {
  __shared__ float values[64];
  if (!bug) values[threadIdx.x] = 0;
  y[threadIdx.x] = values[threadIdx.x] * 0 + 2;
}

__global__ void UninitialisedGlobalKernel(bool bug, const float* fresh, const float* x, float* y) {
  y[threadIdx.x] = (bug ? fresh : x)[threadIdx.x] * 0 + 2;
}

__global__ void GlobalRaceBetweenBlocksKernel(bool bug, float* x, float* y) {
  if (threadIdx.x == 5) x[bug ? 7 : blockIdx.x] = static_cast<float>(blockIdx.x);
  y[blockIdx.x * 64 + threadIdx.x] = 2;
}

__global__ void GlobalRaceInBlockKernel(bool bug, float* x, float* y) {
  x[threadIdx.x] = 2;
  if (!bug) __syncthreads();
  y[threadIdx.x] = x[(threadIdx.x + 1) % 64];
}

__global__ void LastBlockWithoutFenceKernel(bool bug, float* x, unsigned* counter, float* y) {
  __shared__ bool is_last[1];
  if (threadIdx.x == 0) {
    x[blockIdx.x] = 1;
    if (!bug) __threadfence();
    is_last[0] = atomicAdd(counter, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last[0]) y[threadIdx.x] = x[0] + x[1];
}

__global__ void TrapKernel(bool bug, float* y) {
  if (bug && threadIdx.x == 9) __trap();
  y[threadIdx.x] = 2;
}

__global__ void AssertKernel(bool bug, float* y) {
  assert(!bug || threadIdx.x != 9);
  y[threadIdx.x] = 2;
}

}  // namespace

cudaError_t RunPlanted(PlantedBug bug, bool planted, float* x, float* y, int n) {
  const auto run = [](auto kernel, unsigned grid, size_t shared, auto... arguments) {
    return LaunchKernel(kernel, grid, 64, shared, arguments...);
  };
  switch (bug) {
    case PlantedBug::kBarrierInHalfTheThreads:
      return run(BarrierInHalfTheThreadsKernel, 1, 0, planted, y);
    case PlantedBug::kExitBeforeBarrier:
      return run(ExitBeforeBarrierKernel, 1, 0, planted, y, 64);
    case PlantedBug::kLoopBarrierUneven:
      return run(LoopBarrierUnevenKernel, 1, 0, planted, y);
    case PlantedBug::kShuffleInBranch:
      return run(ShuffleInBranchKernel, 1, 0, planted, y);
    case PlantedBug::kShuffleTwoPlaces:
      return run(ShuffleTwoPlacesKernel, 1, 0, planted, y);
    case PlantedBug::kShuffleFromAbsentLane:
      return run(ShuffleFromAbsentLaneKernel, 1, 0, planted, y);
    case PlantedBug::kShuffleNotInMask:
      return run(ShuffleNotInMaskKernel, 1, 0, planted, y);
    case PlantedBug::kGlobalPastEnd:
      return run(GlobalPastEndKernel, 1, 0, planted, x, y, n);
    case PlantedBug::kGlobalPastEndWrite:
      return run(GlobalPastEndWriteKernel, 1, 0, planted, y, n);
    case PlantedBug::kGlobalBeforeBegin:
      return run(GlobalBeforeBeginKernel, 1, 0, planted, x, y);
    case PlantedBug::kSharedPastEndRead:
      return run(SharedPastEndReadKernel, 1, 0, planted, y);
    case PlantedBug::kDynamicSharedPastEnd:
      return run(DynamicSharedPastEndKernel, 1, 256, planted, y);
    case PlantedBug::kMissingBarrier:
      return run(MissingBarrierKernel, 1, 0, planted, y);
    case PlantedBug::kMissingBarrierAfterRead:
      return run(MissingBarrierAfterReadKernel, 1, 0, planted, y);
    case PlantedBug::kMissingSyncWarp:
      return run(MissingSyncWarpKernel, 1, 0, planted, y);
    case PlantedBug::kMissingAsyncWait:
      return run(MissingAsyncWaitKernel, 1, 0, planted, x, y);
    case PlantedBug::kMissingAsyncBarrier:
      return run(MissingAsyncBarrierKernel, 1, 0, planted, x, y);
    case PlantedBug::kMisalignedVector:
      return run(MisalignedVectorKernel, 1, 0, planted, x, y);
    case PlantedBug::kMisalignedAsync:
      return run(MisalignedAsyncKernel, 1, 0, planted, x, y);
    case PlantedBug::kUninitialisedShared:
      return run(UninitialisedSharedKernel, 1, 0, planted, y);
    case PlantedBug::kUninitialisedGlobal:
      return run(UninitialisedGlobalKernel, 1, 0, planted, y + n / 2, x, y);
    case PlantedBug::kGlobalRaceBetweenBlocks:
      return run(GlobalRaceBetweenBlocksKernel, 2, 0, planted, x, y);
    case PlantedBug::kGlobalRaceInBlock:
      return run(GlobalRaceInBlockKernel, 1, 0, planted, x, y);
    case PlantedBug::kLastBlockWithoutFence:
      return run(LastBlockWithoutFenceKernel, 2, 0, planted, x,
                 reinterpret_cast<unsigned*>(x + 128), y);
    case PlantedBug::kTrap:
      return run(TrapKernel, 1, 0, planted, y);
    case PlantedBug::kAssert:
      return run(AssertKernel, 1, 0, planted, y);
  }
  return cudaErrorInvalidValue;
}

}  // namespace lockstep
