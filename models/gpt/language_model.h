// What the trainer asks of a model.
#pragma once

#include "core/module.h"

namespace lockstep::models {

// Maps ids i32 or i64 [B, T] to logits [B, T, V], or, given the targets as well, to their loss. Two
// ways through one Forward, so that hooks run around either, and so that a loss need not make all
// logits. Derived classes write Forward(ids, targets); targets are undefined where logits are asked
// for.
class LanguageModel : public ModuleOf<Tensor(const Tensor& ids, const Tensor& targets)> {
 public:
  Tensor operator()(const Tensor& ids) { return ModuleOf::operator()(ids, Tensor()); }
  // The sum of the cross entropies of all positions with their targets, i32 or i64 [B, T], -1 for
  // none, in nats: a scalar, f64 for an f64 model, else f32.
  Tensor Loss(const Tensor& ids, const Tensor& targets) {
    LS_CHECK(targets.defined(), "the loss of a language model needs targets");
    return ModuleOf::operator()(ids, targets);
  }
};

}  // namespace lockstep::models
