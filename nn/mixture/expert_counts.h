// The rows of each expert, for a host that must know them.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace lockstep::nn {

// How many rows each expert has, of `rows` in all: waits for ExpertOrder::offsets. On the meta
// device the rows are divided as evenly as possible.
std::vector<int64_t> ExpertCounts(const Tensor& offsets, int64_t rows);

}  // namespace lockstep::nn
