// A linear layer per group of rows: what the experts of a mixture multiply.
#pragma once

#include "core/autograd/gradients.h"
#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y[r] = x[r] weight[e]^T for the rows r of group e: x [R, K], weight [E, N, K] (out, in), offsets
// i32 [E + 1] on their device, ascending from 0 to R: group e has the rows offsets[e] ...
// offsets[e + 1] - 1 and may have none. x and weight have the same floating dtype; sums over K are
// in f32 or wider and rounded once.
//
// A row's bits do not depend on the other rows, nor on how many its group has. The weight's
// gradient is one product per group, over its rows in order, and zero for a group without rows; it
// may be of another dtype (an f32 main gradient). On a GPU bf16, f16 and, where cuda::AllowTf32
// says so, f32 are multiplied on tensor cores, at full speed if N and K are multiples of 16 bytes;
// the host never learns the sizes of groups, so that a captured graph stays right. Saves x and
// weight.
Tensor GroupedLinear(const Tensor& x, const Tensor& weight, const Tensor& offsets);

}  // namespace ops

struct GroupedLinearForwardArgs {
  Tensor x;        // [R, K]
  Tensor weight;   // [E, N, K]
  Tensor offsets;  // i32 [E + 1]
  Tensor y;        // [R, N], written
};
inline constinit Slot<void(const GroupedLinearForwardArgs&)> grouped_linear_forward{
    "grouped_linear_forward"};

// dx = dy weight[e], dweight[e] = dy^T x over the rows of group e. Each may be undefined:
// not needed. dweight may have another dtype.
struct GroupedLinearBackwardArgs {
  Tensor x;            // [R, K]; unused without dweight
  Tensor weight;       // [E, N, K]; unused without dx
  Tensor offsets;      // i32 [E + 1]
  Tensor dy;           // [R, N]
  GradTarget dx;       // [R, K] or undefined
  GradTarget dweight;  // [E, N, K] or undefined
};
inline constinit Slot<void(const GroupedLinearBackwardArgs&)> grouped_linear_backward{
    "grouped_linear_backward"};

}  // namespace lockstep
