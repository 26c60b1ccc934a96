// The products of ragged groups on tensor cores: of bf16 and f16, and of f32 as TF32.
#pragma once

#include "kernels/grouped_linear/grouped_linear.h"

namespace lockstep::cuda {

// to[r] = from[r] op(weight[group of r]), or += that: transposed: weight [E, out, in], else
// [E, in, out]. All have the same dtype.
void GroupedProductByMma(const char* name, Stream stream, const Tensor& from, const Tensor& weight,
                         bool transposed, const Tensor& offsets, const Tensor& to, bool accumulate);

// args.dweight[e] = dy^T x over the rows of group e, or += that; dweight is f32 or of dy's dtype.
void GroupedWeightByMma(const char* name, Stream stream, const GroupedLinearBackwardArgs& args);

}  // namespace lockstep::cuda
