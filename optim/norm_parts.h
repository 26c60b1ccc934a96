// How the gradient norm sees parameters whose layers ranks compute together.
#pragma once

#include <vector>

#include "core/parameter.h"
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

// False for a copy of what another rank has of the parameter: that one saves it.
inline bool CountsHere(const Parameter& parameter) {
  const auto* parts = dynamic_cast<const NormParts*>(parameter.exchange().get());
  return parts == nullptr || parts->PartsOf(parameter).own > 0;
}

}  // namespace lockstep::optim
