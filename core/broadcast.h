// Broadcasting as in NumPy: shapes are aligned at the last dimension, and sizes of 1 are repeated.
#pragma once

#include "core/tensor.h"

namespace lockstep {

// The shape of both together. Throws ArgumentError naming `op` if they do not broadcast.
Shape BroadcastShape(const char* op, const Shape& a, const Shape& b);

// The gradient of Expand: sum = scale * from, summed over the dimensions along which sum's shape
// expands to from's, or sum += that. Both are contiguous and floating. Sums run in f32 or wider, in
// an order that depends only on the shapes; the result is rounded once. Throws ArgumentError if
// sum's shape does not expand to from's.
void SumExpanded(const Tensor& from, double scale, const Tensor& sum, bool accumulate);

}  // namespace lockstep
