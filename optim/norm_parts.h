// How the gradient norm sees parameters whose layers ranks compute together.
#pragma once

#include <vector>

#include "core/part_exchange.h"

namespace lockstep::optim {

// Squares are summed in chunks of a gradient (kernels/global_norm/global_norm.h). Where ranks have
// parts of other shapes than a run of rows, these chunks lie within the parts into which the
// parameter would be cut on the most ranks, so that the norm has the same bits on fewer.
class NormParts : public PartExchange {
 public:
  // Of the parameter: equal parts, of which this rank has [first, first + own).
  struct Parts {
    int64_t all = 1, first = 0, own = 1;
  };
  virtual Parts PartsOf(const Parameter& parameter) const = 0;
  // Part first + j of a gradient of which this rank has `grad`: contiguous.
  virtual Tensor PartOf(const Parameter& parameter, const Tensor& grad, int64_t j) const = 0;
};

// Where a rank has a run of rows, which may begin and end within a chunk.
class NormRuns : public PartExchange {
 public:
  // Collective. Of the chunks of the whole gradient, of which this rank has `grad` (contiguous),
  // writes into `sums` (f64, one for each chunk, zeros) the sums of squares of some, so that each
  // chunk is summed by one rank, as a whole.
  virtual void SumSquares(const Parameter& parameter, const Tensor& grad, const Tensor& sums) = 0;
};

}  // namespace lockstep::optim
