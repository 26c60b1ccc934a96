// Element-wise reductions on the host.
#pragma once

#include <cstdint>
#include <span>

#include "dist/collective.h"

namespace lockstep::dist {

// output[i] = inputs[0][i] op inputs[1][i] op ..., n elements each, from left to right. f16 and
// bf16 are reduced in f32 and rounded once; integers wrap around; max and min propagate NaN. The
// output may be one of the inputs. Throws ArgumentError for dtypes that cannot be reduced.
void ReduceInOrder(ReduceOp op, DType dtype, std::span<const void* const> inputs, void* output,
                   int64_t n);

}  // namespace lockstep::dist
