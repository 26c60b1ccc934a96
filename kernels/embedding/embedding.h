// Rows of a table, picked by id.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y[..., :] = weight[ids[...], :]. ids: i32 or i64 of any shape; weight: [V, C], floating. An id
// outside [0, V) throws ArgumentError with the id, its position and V. Saves ids.
//
// The gradient of a row is the sum, in order of position and in f32 or wider, of the gradients at
// the places of its id, on CUDA of each 64 of these first; it is added to what is there (tied
// output heads) and may have another dtype than the weight.
Tensor Embedding(const Tensor& ids, const Tensor& weight);

}  // namespace ops

// Which rows of a table a weight has: [first, first + its rows) of `of`; by default all.
struct TablePart {
  int64_t first = 0, of = 0;

  int64_t Whole(int64_t here) const { return of == 0 ? here : of; }
};

// The rows of ids that are in the table, but not in the part, become zeros.
inline constinit Slot<void(const Tensor& ids, const Tensor& weight, TablePart part,
                           const Tensor& y)>
    embedding_forward{"embedding_forward"};
// dweight (any floating dtype) is overwritten in full, or added to. ids must be in range; those of
// other parts are left out.
inline constinit Slot<void(const Tensor& ids, const Tensor& dy, TablePart part,
                           const Tensor& dweight, bool accumulate)>
    embedding_backward{"embedding_backward"};

}  // namespace lockstep
