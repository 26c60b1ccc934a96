// Attention's backward in parts, one after another: batches are independent, and so are key heads,
// so a part is a smaller problem on views of the same tensors.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"

namespace lockstep {

struct AttentionSlices {
  int64_t batches = 1;  // parts of the batch: a divisor of it
  int64_t groups = 1;   // parts of the key heads, each with its query heads: a divisor of them;
                        // only where a part has a single batch, so that its statistics have no gaps
  int64_t parts() const { return batches * groups; }
};

// Part `i`. Only without dropout, whose mask depends on the indices of batches and heads.
inline AttentionBackwardArgs SliceOf(const AttentionBackwardArgs& args, AttentionSlices slices,
                                     int64_t i) {
  LS_INVARIANT(!args.dropout.step_values.defined() && args.q.dim(0) % slices.batches == 0 &&
               args.k.dim(2) % slices.groups == 0 &&
               (slices.groups == 1 || args.q.dim(0) == slices.batches));
  const auto part = [](const Tensor& x, int dim, int64_t parts, int64_t number) {
    const int64_t size = x.dim(dim) / parts;
    return x.Slice(dim, number * size, (number + 1) * size);
  };
  AttentionBackwardArgs slice = args;
  for (Tensor* x :
       {&slice.q, &slice.k, &slice.v, &slice.y, &slice.dy, &slice.dq, &slice.dk, &slice.dv}) {
    *x = part(part(*x, 0, slices.batches, i / slices.groups), 2, slices.groups, i % slices.groups);
  }
  slice.log_sum_exp = part(part(args.log_sum_exp, 0, slices.batches, i / slices.groups), 1,
                           slices.groups, i % slices.groups);
  if (args.scores.first_key.defined()) {
    slice.scores.first_key = part(args.scores.first_key, 0, slices.batches, i / slices.groups);
  }
  return slice;
}

}  // namespace lockstep
