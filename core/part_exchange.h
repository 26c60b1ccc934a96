// How ranks that hold parts of parameters reach each other's; dist implements it.
#pragma once

#include <cstdint>
#include <functional>

#include "core/tensor.h"

namespace lockstep {

class Parameter;

// The ranks that hold the shards of a parameter (ShardLayout). Calls that are not const are
// collective: every one of these ranks makes them, in the same order. `part` and `grad` are shaped
// like this rank's part.
class PartExchange {
 public:
  virtual ~PartExchange() = default;
  // Whether this rank has a part of the parameter, and updates it. Otherwise the parameter belongs
  // to a stage of a pipeline that is on other ranks: these update it.
  virtual bool Holds(const Parameter& parameter) const = 0;
  // Assembles the whole from each rank's part: it has the parameter's logical shape, on the part's
  // device and of its dtype. The part may also be one of the optimizer's state, say.
  virtual Tensor Gather(const Parameter& parameter, const Tensor& part) = 0;
  // The same of only the ranks that hold the parameter, to which only they get it.
  virtual Tensor GatherHere(const Parameter& parameter, const Tensor& part) = 0;
  // `values` (f64, on the parameters' device) becomes the element-wise sum over the ranks: exact
  // where at most one of them has a value other than 0.
  virtual void Sum(const Tensor& values) = 0;

  // A sum over a gradient, such as its norm, is made of chunks
  // (kernels/global_norm/global_norm.h), which lie within the parts into which ranks cut the
  // parameter, or would if there were more of them: so it has the same bits on fewer. How many
  // chunks the whole gradient has, the same on every rank.
  virtual int64_t Chunks(const Parameter& parameter) const = 0;
  // Calls add(first, values) for each run of chunks that this rank contributes, which begins with
  // chunk `first`: `values` are the elements, contiguous. Among all ranks, each chunk comes from
  // exactly one.
  using AddRun = std::function<void(int64_t first, const Tensor& values)>;
  virtual void ForEachRun(const Parameter& parameter, const Tensor& grad, const AddRun& add) = 0;
};

}  // namespace lockstep
