// What low-rank adapters add to the results of linear layers.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace lockstep::ops {

// Some neighbouring columns of y, and what is added to them: scale times x's columns of this block
// by b^T.
struct LowRankBlock {
  Tensor b;         // [columns, rank]; undefined: nothing is added
  int64_t columns;  // of y
  double scale = 1;
};

// y [..., N] plus the products of its blocks: x [..., K], whose columns are those of the blocks
// that add something, one after another; all of the same floating dtype. The result is like y, and
// has its memory if nothing else can see that any more (pass it with std::move). It is one product,
// by a matrix [N, K] with scale b, rounded to the dtype, along its diagonal, summed in f32 or
// wider; its sum with y is rounded once. So y is read and written once each, and dy read for all
// gradients without a copy. Saves x and that matrix; the gradient of y is that of the result, and
// those of b may be of another dtype (an f32 main gradient).
Tensor LowRankUpdate(Tensor y, const Tensor& x, const std::vector<LowRankBlock>& blocks);

}  // namespace lockstep::ops
