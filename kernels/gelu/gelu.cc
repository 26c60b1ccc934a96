#include "kernels/gelu/gelu.h"

#include "core/autograd/node.h"
#include "core/autograd/recomputable_ops.h"
#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

const bool registered = RegisterRecomputable("gelu");

// x: contiguous.
Tensor Compute(GeluForm form, const Tensor& x) {
  Tensor y = Tensor::EmptyLike(x);
  gelu_forward(CurrentStream(x.device()), form, x, y);
  return y;
}

}  // namespace

void OfferGelu(GeluForm form, const Tensor& x, const Tensor& y) {
  OfferRecompute("gelu", y, {{x, "the input of gelu"}},
                 [form](std::span<const Tensor> in) { return Compute(form, in[0]); });
}

Tensor Gelu(const Tensor& x, GeluForm form) {
  CheckFloating("gelu", x);
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Compute(form, input);
  RecordOp("gelu", {&x}, {&y}, {{input, "the input of gelu"}},
           [form](const SavedTensors& saved, Gradients& grads) {
             const Tensor x = saved[0];
             const auto [dx, accumulate] = grads.Open(0);
             gelu_backward(CurrentStream(x.device()), form, x, grads[0], dx, accumulate);
           });
  OfferGelu(form, input, y);
  return y;
}

}  // namespace lockstep::ops
