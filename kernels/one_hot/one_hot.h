// Classes as vectors.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y[..., c] = 1 where c == index[...], else 0, for c in [0, classes). index: i32 or i64, any shape
// and strides. No gradient. Throws ArgumentError for an index outside the classes (on the CPU;
// elsewhere its row is 0).
Tensor OneHot(const Tensor& index, int64_t classes, DType dtype = DType::kF32);

}  // namespace ops

// y[i, index[i]] = 1, for index [N] and y u8[N, classes], of zeros.
inline constinit Slot<void(const Tensor& index, const Tensor& y)> one_hot_slot{"one_hot"};

}  // namespace lockstep
