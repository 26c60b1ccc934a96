#include "kernels/expert_router/expert_router.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

void CheckLogits(const char* op, const Tensor& logits) {
  LS_CHECK(logits.defined() && logits.ndim() == 2 &&
               (logits.dtype() == DType::kF32 || logits.dtype() == DType::kF64),
           op, ": the logits must be f32 or f64 [N, E], got ", logits.Describe(),
           ": a router computes in f32, so cast what it multiplies");
}

}  // namespace

Tensor TopExperts(const Tensor& logits, const Tensor& bias, int64_t k, RouterScore score) {
  CheckLogits("top_experts", logits);
  const int64_t experts = logits.dim(1);
  LS_CHECK(k >= 1 && k <= experts, "top_experts: a token cannot go to ", k, " of ", experts,
           " experts");
  if (bias.defined()) {
    LS_CHECK(score == RouterScore::kSigmoid,
             "top_experts: a bias is for sigmoid scores; balance softmax ones by a loss");
    LS_CHECK(bias.shape() == Shape({experts}) && bias.dtype() == DType::kF32 &&
                 bias.device() == logits.device(),
             "top_experts: the bias must be f32[", experts, "] on ", logits.device(), ", got ",
             bias.Describe());
  }
  const Tensor chosen = Tensor::Empty({logits.dim(0), k}, DType::kI32, logits.device());
  top_experts(CurrentStream(logits.device()),
              {score, logits.Detach().Contiguous(),
               bias.defined() ? bias.Detach().Contiguous() : Tensor(), chosen});
  return chosen;
}

Tensor ExpertGates(const Tensor& logits, const Tensor& experts, const RouterOptions& options) {
  CheckLogits("expert_gates", logits);
  LS_CHECK(experts.defined() && experts.ndim() == 2 && experts.dtype() == DType::kI32 &&
               experts.dim(0) == logits.dim(0) && experts.device() == logits.device(),
           "expert_gates: the experts must be i32[", logits.dim(0), ", k] on ", logits.device(),
           ", got ", experts.Describe());
  LS_CHECK(options.scale > 0, "expert_gates: the scale must be positive, got ", options.scale);
  const Tensor input = logits.Detach().Contiguous(), chosen = experts.Contiguous();
  Tensor gates = Tensor::Empty(chosen.shape(), input.dtype(), input.device());
  expert_gates_forward(CurrentStream(input.device()), {options, input, chosen, gates});
  RecordOp("expert_gates", {&logits}, {&gates},
           {{input, "the logits of expert_gates"}, {chosen, "the experts of expert_gates"}},
           [options](const SavedTensors& saved, Gradients& grads) {
             const Tensor logits = saved[0], experts = saved[1];
             const auto [dlogits, accumulate] = grads.Open(0);
             expert_gates_backward(CurrentStream(dlogits.device()),
                                   {options, logits, experts, grads[0], dlogits, accumulate});
           });
  return gates;
}

}  // namespace lockstep::ops
