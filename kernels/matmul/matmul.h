// Matrix products, one or many at a time.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// c = a b over the last two dimensions: a [..., M, K], b [..., K, N], c [..., M, N]. Leading
// dimensions broadcast as in NumPy: aligned at the last, sizes of 1 and missing ones are repeated.
// A vector a [K] is a row, and a vector b [K] a column, which c lacks: a [..., M, K] b [K] is [...,
// M], and two vectors give a scalar. Other strides than those of contiguous tensors are copied, and
// so is what is repeated, except for b [K, N] (or with leading ones), which serves all of a in one
// product. a and b have the same floating dtype and device; sums over K are in f32 or wider and
// rounded once; K = 0 gives zeros. Saves a and b; the gradient of what is repeated is summed in f32
// or wider, and rounded once.
Tensor MatMul(const Tensor& a, const Tensor& b);

}  // namespace ops

// c = op(a) op(b), or c += that, for each of a batch; op transposes the last two dimensions. All
// contiguous: a [batch, m, k] (or [batch, k, m] if transposed), b [batch, k, n], c [batch, m, n]. c
// may have another dtype than a and b. A struct so that scales of FP8 operands can join.
struct MatMulArgs {
  bool transpose_a = false, transpose_b = false;
  Tensor a, b;
  Tensor c;  // written
  bool accumulate = false;
};
inline constinit Slot<void(const MatMulArgs&)> matmul_slot{"matmul"};

}  // namespace lockstep
