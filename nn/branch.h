// Layers whose last steps are left to the norm that adds their result to the residual stream.
#pragma once

#include "core/module.h"
#include "kernels/residual_norm/residual_norm.h"

namespace lockstep::nn {

// A Layer that can leave its last steps, a bias and a dropout, to whoever adds its result to
// something: ResidualNorm does so in the pass that it makes anyway, and in backward it sums up the
// bias' gradient there. Those below end Forward: a subclass that overrode it would be passed by in
// a transformer. What computes something else is a Layer of its own, with one of these as a child.
class BranchLayer : public Layer {
 public:
  // As operator(), hooks and all, but ops::Complete(AsBranch(x)) is the result, to rounding. x may
  // wait for its own last steps.
  ops::Branch AsBranch(const ops::Branch& x);

 protected:
  virtual ops::Branch ForwardBranch(const ops::Branch& x) = 0;
};

// layer->AsBranch(x) if the layer in this slot can, else its result.
ops::Branch BranchOf(Child<Layer>& layer, const ops::Branch& x);

}  // namespace lockstep::nn
