// Every warp function once; the values that come out are derived in warp_test.cc.
#include <cuda_bf16.h>

#include "tests/cudasim/kernels.h"
#include "tests/cudasim/launch_kernel.cuh"

namespace lockstep {
namespace {

constexpr unsigned kAll = 0xffffffffu;

__global__ void WarpFunctionsKernel(unsigned* out) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned value = 100 + threadIdx.x;
  unsigned* mine = out + kWarpFunctions * threadIdx.x;
  mine[0] = __shfl_sync(kAll, value, 5);
  mine[1] = __shfl_sync(kAll, value, 13, 8);
  mine[2] = __shfl_up_sync(kAll, value, 3);
  mine[3] = __shfl_up_sync(kAll, value, 3, 16);
  mine[4] = __shfl_down_sync(kAll, value, 7);
  mine[5] = __shfl_down_sync(kAll, value, 1, 4);
  mine[6] = __shfl_xor_sync(kAll, value, 17);
  mine[7] = __shfl_xor_sync(kAll, value, 12, 8);
  mine[8] = __ballot_sync(kAll, lane % 3 == 0);
  mine[9] = static_cast<unsigned>(__any_sync(kAll, threadIdx.x == 40) * 2 +
                                  __all_sync(kAll, threadIdx.x < 32));
  mine[10] = __reduce_add_sync(kAll, value);
  mine[11] = static_cast<unsigned>(__reduce_min_sync(kAll, 7 - static_cast<int>(lane)));
  mine[12] =
      __reduce_max_sync(kAll, value) << 16 | (__reduce_or_sync(kAll, 1u << lane % 8) & 0xffff);
  mine[13] = __match_any_sync(kAll, lane / 10);
  // Each half is in its own collective, and its lanes have the same mask.
  const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  mine[14] = __shfl_xor_sync(half, value, 1);
  // A branch that only part of the warp takes.
  mine[15] = 0;
  if (lane >= 24) {
    mine[15] = __reduce_add_sync(0xff000000u, 1u) + __popc(__ballot_sync(0xff000000u, lane % 2));
  }
  __syncwarp();
  mine[16] = __reduce_xor_sync(kAll, value) << 16 | (__reduce_and_sync(kAll, value | 3) & 0xffff);
  // 8 and 2 bytes.
  const double wide = __shfl_sync(kAll, 1.0 / (1 + lane), 3);
  mine[17] = wide == 0.25;
  const __nv_bfloat16 narrow =
      __shfl_down_sync(kAll, __float2bfloat16(static_cast<float>(lane)), 2);
  mine[18] = static_cast<unsigned>(__bfloat162float(narrow));
}

}  // namespace

cudaError_t RunWarpFunctions(unsigned* out) {
  return LaunchKernel(WarpFunctionsKernel, 1, 64, 0, out);
}

}  // namespace lockstep
