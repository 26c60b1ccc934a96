#include "own/softsign.h"

#include "core/autograd/node.h"

namespace own {

using namespace lockstep;

Tensor Softsign(const Tensor& x) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()), "softsign: x must be a floating tensor, got ",
           x.Describe());
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Tensor::EmptyLike(input);
  softsign_forward(CurrentStream(x.device()), input, y);
  RecordOp("softsign", {&x}, {&y}, {{input, "the input of softsign"}},
           [](const SavedTensors& saved, Gradients& grads) {
             const auto [dx, accumulate] = grads.Open(0);
             softsign_backward(CurrentStream(dx.device()), saved[0], grads[0], dx, accumulate);
           });
  return y;
}

}  // namespace own
