// What an update needs of the ranks across which parameters are sharded; dist implements it.
#pragma once

#include <cstdint>
#include <functional>

#include "core/part_exchange.h"

namespace lockstep::optim {

class UpdateParts : public PartExchange {
 public:
  // The gradient norm sums squares in chunks (kernels/global_norm/global_norm.h), which lie within
  // the parts into which ranks cut the parameter, or would if there were more of them: so the norm
  // has the same bits on fewer. How many chunks the whole gradient has, the same on every rank.
  virtual int64_t Chunks(const Parameter& parameter) const = 0;
  // Calls add(first, values) for each run of chunks that this rank contributes, which begins with
  // chunk `first`: `values` are the elements, contiguous. Among all ranks, each chunk comes from
  // exactly one. Collective. `grad` is shaped like this rank's part.
  virtual void ForEachRun(const Parameter& parameter, const Tensor& grad,
                          const std::function<void(int64_t first, const Tensor& values)>& add) = 0;
  // As Gather, but only of the ranks that have a part, and update it: not of those that have other
  // stages of a pipeline.
  virtual Tensor GatherHere(const Parameter& parameter, const Tensor& part) = 0;
};

}  // namespace lockstep::optim
