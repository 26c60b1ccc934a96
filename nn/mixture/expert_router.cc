#include "nn/mixture/expert_router.h"

#include "core/autograd/recompute.h"
#include "core/step_state.h"
#include "kernels/linear/linear.h"
#include "nn/init.h"
#include "nn/mixture/auxiliary_loss.h"

namespace lockstep::nn {
namespace {

MixtureOptions Checked(const MixtureOptions& o) {
  LS_CHECK(o.n_expert >= 1 && o.n_expert_used >= 1 && o.n_expert_used <= o.n_expert,
           "a mixture needs experts, and a token at least one and at most all of them: n_expert = ",
           o.n_expert, ", n_expert_used = ", o.n_expert_used);
  LS_CHECK(o.balance_loss >= 0 && o.z_loss >= 0 && o.bias_rate >= 0,
           "a mixture's balance_loss, z_loss and bias_rate must not be negative, got ",
           o.balance_loss, ", ", o.z_loss, " and ", o.bias_rate);
  LS_CHECK(o.bias_rate == 0 || o.router.score == RouterScore::kSigmoid,
           "a mixture's bias_rate is for sigmoid scores: use a balance_loss with softmax ones");
  return o;
}

}  // namespace

ExpertRouter::ExpertRouter(const TransformerOptions& options)
    : options_(Checked(options.mixture)),
      weight_(AddParameter("weight", {options_.n_expert, options.n_embd},
                           Normal(0, options.init_std), /*decay=*/true)) {
  if (options_.router.score == RouterScore::kSigmoid) {
    bias_ = &AddBuffer("bias", Tensor::Zeros({options_.n_expert}, DType::kF32));
  }
}

const Tensor& ExpertRouter::bias() const {
  static const Tensor none;
  return bias_ ? *bias_ : none;
}

Tensor ExpertRouter::Logits(const Tensor& x) const {
  const DType wide = AccumulationDType(x.dtype());
  return ops::Linear(x.To(wide), weight_->value().To(wide), {}, Activation::kNone,
                     /*full_f32=*/true);
}

Routes ExpertRouter::Forward(const Tensor& x) {
  LS_CHECK(x.defined() && x.ndim() == 3 && x.dim(2) == weight_->logical_shape()[1],
           "a router takes [B, T, ", weight_->logical_shape()[1], "], got ", x.Describe());
  const Tensor logits = Logits(x);
  const Tensor of_tokens = logits.View({x.dim(0) * x.dim(1), n_expert()});
  const RouterScore score = options_.router.score;
  const Tensor experts = KeepChoice([&] {
    // f64 models have their buffers in f64.
    const Tensor bias = bias_ ? bias_->To(DType::kF32) : Tensor();
    return ops::TopExperts(of_tokens, bias, options_.n_expert_used, score);
  });
  Routes routes{ops::ExpertGates(of_tokens, experts, options_.router),
                ops::SortByExpert(experts, n_expert())};
  if ((options_.balance_loss > 0 || options_.z_loss > 0) && NeedsGrad({&logits})) {
    const RouterLossOptions losses{score, options_.balance_loss, options_.z_loss};
    const Tensor loss = parts_.loss ? parts_.loss(logits, experts, losses)
                                    : ops::RouterLoss(logits, experts, losses);
    routes.gates = WithAuxiliaryLoss(routes.gates, loss);
  }
  if (CurrentStepState() != nullptr && !Recomputing()) {
    parts_.count ? parts_.count(routes.order) : CountLoad(routes.order);
  }
  return routes;
}

void ExpertRouter::CountLoad(const ExpertOrder& order) {
  const Device device = order.offsets.device();
  if (!load_.defined() || load_.device() != device) {
    load_ = Tensor::Zeros({n_expert()}, DType::kI64, device);
  }
  ops::CountRows(order, load_);
}

}  // namespace lockstep::nn
