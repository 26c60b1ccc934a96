// Gradients of tied weights; those of each use are summed separately.
#pragma once

#include <memory>
#include <vector>

#include "core/module.h"
#include "nn/tied_weight.h"

namespace lockstep::dist {

// A sum of several micro-batches' gradients in a fixed order depends on where the two uses of a
// tied weight are added: in each micro-batch, or, as on two ranks of a pipeline, at the end. So
// that its bits are the same on both, the uses are apart in every ordered sum of several: each is
// summed over micro-batches and ranks as a parameter of its own, and added last, once a step. That
// takes the memory of one more gradient.
class TiedGradients {
 public:
  // Keeps them apart as long as it lives: those of trainable weights that one of the module's parts
  // has and others read by an nn::TiedWeight, unless they are apart already.
  explicit TiedGradients(Module& module);
  ~TiedGradients();
  TiedGradients(const TiedGradients&) = delete;
  TiedGradients& operator=(const TiedGradients&) = delete;

  const std::vector<std::shared_ptr<nn::TiedWeight>>& uses() const { return uses_; }
  // The last addition: adds the gradients of a weight's uses to its own, and empties them.
  void Add() const;
  void Clear() const;  // forgets the gradients of the uses

 private:
  std::vector<std::shared_ptr<nn::TiedWeight>> uses_;
};

// The parameters to which a backward through the module writes gradients: its own, without weights
// that it reads only where they are kept apart, and then TiedWeight::gradient_holder() of these
// uses.
std::vector<std::shared_ptr<Parameter>> GradientParameters(Module& module);

}  // namespace lockstep::dist
