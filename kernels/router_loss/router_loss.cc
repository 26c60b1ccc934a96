#include "kernels/router_loss/router_loss.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
Tensor RouterLoss(const Tensor& logits, const Tensor& experts, const RouterLossOptions& options) {
  LS_CHECK(logits.defined() && logits.ndim() == 3 &&
               (logits.dtype() == DType::kF32 || logits.dtype() == DType::kF64),
           "router_loss: the logits must be f32 or f64 [B, T, E], got ", logits.Describe());
  const int64_t b = logits.dim(0), t = logits.dim(1), e = logits.dim(2);
  LS_CHECK(experts.defined() && experts.ndim() == 2 && experts.dtype() == DType::kI32 &&
               experts.dim(0) == b * t && experts.device() == logits.device(),
           "router_loss: the experts must be i32[", b * t, ", k] on ", logits.device(), ", got ",
           experts.Describe());
  LS_CHECK(options.balance >= 0 && options.z >= 0,
           "router_loss: the coefficients must not be negative, got ", options.balance, " and ",
           options.z);
  const Tensor input = logits.Detach().Contiguous();
  const Tensor chosen = experts.Contiguous().View({b, t, experts.dim(1)});
  const Tensor weights = Tensor::Empty({b, e}, input.dtype(), input.device());
  Tensor loss = Tensor::Empty({}, input.dtype(), input.device());
  router_loss_forward(CurrentStream(input.device()), {options, input, chosen, weights, loss});
  RecordOp("router_loss", {&logits}, {&loss},
           {{input, "the logits of router_loss"}, {weights, "the loads of router_loss"}},
           [options](const SavedTensors& saved, Gradients& grads) {
             const Tensor logits = saved[0], weights = saved[1];
             const auto [dlogits, accumulate] = grads.Open(0);
             router_loss_backward(CurrentStream(dlogits.device()),
                                  {options, logits, weights, grads[0], dlogits, accumulate});
           });
  return loss;
}

}  // namespace lockstep::ops
