// Products of bf16 by oneDNN, where the CPU has units for them.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm_tile.h"

namespace lockstep::cpu {

// MultiplyTile where IsByOneDnn, for k > 0.
void MultiplyByOneDnn(const TiledProduct<BF16>& product, int64_t row, int64_t column, float* c,
                      int64_t ldc, bool accumulate);

}  // namespace lockstep::cpu
