// The largest elements of rows, and sorted rows.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"
#include "kernels/values_and_indices.h"

namespace lockstep {

namespace ops {

// The k largest elements along dimension `dim` (negative counts from the end) of a floating x, in
// descending order, or with `largest = false` the k smallest in ascending order, and where they
// are: both have the shape of x with k elements in `dim`. Among equal elements the first in x comes
// first; 0 and -0 are equal, and NaN is larger than all numbers, as in Max. CUDA devices sort all
// elements of x together, at most 2^30. The indices are saved, and have no gradient; that
// of the values goes to where they came from.
//   const auto [values, indices] = ops::TopK(logits, 5);
ValuesAndIndices TopK(const Tensor& x, int64_t k, int dim = -1, bool largest = true);

// All elements, in order: as TopK with all of them.
ValuesAndIndices Sort(const Tensor& x, int dim = -1, bool descending = false);

}  // namespace ops

// The first k positions of each row in sorted order. x: [rows, n], floating and contiguous; index:
// i64 [rows, k], k <= n.
inline constinit Slot<void(bool descending, const Tensor& x, const Tensor& index)> sort_rows{
    "sort_rows"};

}  // namespace lockstep
