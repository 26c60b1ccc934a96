// 2^x as the special function unit computes it.
#pragma once

#include <cuda_runtime.h>

namespace lockstep::cuda {

// Within two units in the last place; results below 2^-126 are 0. One instruction, where exp2f
// spends three more on those.
__device__ inline float FastExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace lockstep::cuda
