// The interface of models that the trainer trains.
#pragma once

#include "core/module.h"

namespace lockstep::models {

// Maps ids i32 or i64 [B, T] to logits [B, T, V], or, given targets too, to their loss. Both go
// through one Forward, so that hooks run around either and a loss need not compute all logits at
// once. Derived classes implement Forward(ids, targets); targets are undefined when logits are
// wanted.
class LanguageModel : public ModuleOf<Tensor(const Tensor& ids, const Tensor& targets)> {
 public:
  Tensor operator()(const Tensor& ids) { return ModuleOf::operator()(ids, Tensor()); }
  // The cross entropy with the targets (i32 or i64 [B, T], -1: none), summed over all positions, in
  // nats: a scalar, f64 for an f64 model, else f32.
  Tensor Loss(const Tensor& ids, const Tensor& targets) {
    LS_CHECK(targets.defined(), "the loss of a language model needs targets");
    return ModuleOf::operator()(ids, targets);
  }
};

}  // namespace lockstep::models
