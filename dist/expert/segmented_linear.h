// What experts multiply whose rows come from several ranks.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace lockstep::dist {

// The rows of a number of experts, in segments, one from each rank, a power of two of them. Within
// a segment they are sorted by expert.
struct ExpertSegments {
  std::vector<int64_t> begin;   // of each segment, and, last, of what follows: the number of rows
  std::vector<Tensor> offsets;  // of each: i32 [E + 1], on the rows' device, from 0 to its rows
};

// ops::GroupedLinear of each segment, by a weight [E, N, K]: rows [R, K] -> [R, N]. A segment's
// products are those of a rank that has all experts itself, of the same sizes and bits. `weights`:
// the weight, or w copies of it (FanOut), where w is a power of two of at most the number of
// segments; segment s reads copy s mod w.
//
// The gradient of each of these is the sum over the n segments that read it, in the order of the
// ordered reduction (dist/data_parallel/fixed_order.h): segment s += segment s + n / 2, for n,
// n / 2, ... 2. It takes memory for log2(n) gradients in addition to its destination. Saves rows
// and weight.
Tensor SegmentedLinear(const Tensor& rows, const std::vector<Tensor>& weights,
                       const ExpertSegments& segments);

}  // namespace lockstep::dist
