// How ranks that hold parts of parameters reach each other's; dist implements it.
#pragma once

#include "core/tensor.h"

namespace lockstep {

class Parameter;

// The ranks that hold the shards of a parameter (ShardLayout). All calls are collective: every one
// of these ranks makes them, in the same order.
class PartExchange {
 public:
  virtual ~PartExchange() = default;
  // Assembles the whole from each rank's part: it has the parameter's logical shape, on the part's
  // device and of its dtype. `part` is shaped like this rank's part (its optimizer state, say).
  virtual Tensor Gather(const Parameter& parameter, const Tensor& part) = 0;
  // `values` (f64, on the parameters' device) becomes the element-wise sum over the ranks: exact
  // where at most one of them has a value other than 0.
  virtual void Sum(const Tensor& values) = 0;
};

}  // namespace lockstep
