#include "kernels/router_loss/router_loss.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

class RouterLossNode : public Node {
 public:
  RouterLossNode(const RouterLossOptions& options, const Tensor& logits, const Tensor& weights)
      : Node("router_loss"),
        options_(options),
        logits_(logits, "the logits of router_loss"),
        weights_(weights, "the loads of router_loss") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor logits = logits_.Unpack();
    const GradSink::Target dlogits = sinks[0].Open(logits);
    router_loss_backward(CurrentStream(logits.device()),
                         {options_, logits, weights_.Unpack(), grads[0].Contiguous(),
                          dlogits.tensor, dlogits.accumulate});
  }
  void Release() override {
    logits_.Reset();
    weights_.Reset();
  }

 private:
  RouterLossOptions options_;
  SavedTensor logits_, weights_;
};

}  // namespace

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
  if (NeedsGrad({&logits})) {
    Record(std::make_shared<RouterLossNode>(options, input, weights), {&logits}, {&loss});
  }
  return loss;
}

}  // namespace lockstep::ops
