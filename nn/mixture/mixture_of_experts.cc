#include "nn/mixture/mixture_of_experts.h"

#include "kernels/binary/binary.h"
#include "kernels/residual/residual.h"
#include "kernels/unary/unary.h"
#include "nn/dropout.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/mlp.h"

namespace lockstep::nn {
namespace {

std::unique_ptr<Child<BranchLayer>> MakeShared(Module* owner, TransformerOptions options) {
  if (options.mixture.n_shared == 0) return nullptr;
  options.n_inner = options.mixture.n_shared;
  options.bias = false;
  options.dropout = 0;  // that of the whole branch
  return std::make_unique<Child<BranchLayer>>(owner, "shared", std::make_shared<Mlp>(options));
}

std::unique_ptr<Child<Layer>> MakeGate(Module* owner, const TransformerOptions& options) {
  if (!options.mixture.shared_gate) return nullptr;
  LS_CHECK(options.mixture.n_shared > 0, "a mixture without a shared expert cannot have its gate");
  return std::make_unique<Child<Layer>>(
      owner, "shared_gate",
      std::make_shared<Linear>(
          options.n_embd, 1,
          LinearOptions{.bias = false, .weight_init = Normal(0, options.init_std)}));
}

}  // namespace

MixtureOfExperts::MixtureOfExperts(const TransformerOptions& options)
    : router_(this, "router", std::make_shared<ExpertRouter>(options)),
      experts_(this, "experts", std::make_shared<Experts>(options)),
      shared_(MakeShared(this, options)),
      shared_gate_(MakeGate(this, options)),
      dropout_(this, "dropout", std::make_shared<BranchDropout>(options.dropout)) {}

Tensor MixtureOfExperts::Shared(const Tensor& x) {
  const Tensor y = ops::Complete((*shared_)(x));
  return shared_gate_ ? ops::Mul(y, ops::Sigmoid((*shared_gate_)(x))) : y;
}

Tensor MixtureOfExperts::Routed(const Tensor& x, const std::function<void()>& meanwhile) {
  const Routes routes = router_(x);
  const Tensor tokens = x.Reshape({x.dim(0) * x.dim(1), x.dim(2)});
  const Tensor rows = ops::Dispatch(tokens, routes.order);
  experts_->Begin(rows, routes.order.offsets);
  meanwhile();
  const Tensor results = experts_(rows, routes.order.offsets);
  return ops::Combine(results, routes.gates, routes.order).View(x.shape());
}

ops::Branch MixtureOfExperts::Forward(ops::Branch branch) {
  Tensor x = ops::Complete(branch);
  if (whole_) x = whole_(x);
  Tensor shared;
  const auto share = [&] {
    if (shared_) shared = Shared(x);
  };
  Tensor y;
  if (by_chunks_ && GradEnabled()) {
    y = by_chunks_(x, [&](const Tensor& chunk) { return Routed(chunk, [] {}); });
    share();
  } else {
    y = Routed(x, share);
  }
  if (shared_) y = ops::Residual(y, shared);
  return dropout_(part_ ? part_(y) : y);
}

}  // namespace lockstep::nn
