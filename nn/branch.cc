#include "nn/branch.h"

namespace lockstep::nn {

ops::Branch BranchLayer::AsBranch(const ops::Branch& x) {
  RunPreForward();
  const uint64_t first = NextSequence();
  ops::Branch branch = ForwardBranch(x);
  if (has_backward_hooks()) {
    const Tensor* outputs[] = {&branch.value};
    HookBackward(outputs, first);
  }
  RunPostForward();
  return branch;
}

ops::Branch BranchOf(Child<Layer>& layer, const ops::Branch& x) {
  if (auto* branch = dynamic_cast<BranchLayer*>(&*layer)) return branch->AsBranch(x);
  return layer(ops::Complete(x));
}

}  // namespace lockstep::nn
