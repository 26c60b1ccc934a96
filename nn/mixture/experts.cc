#include "nn/mixture/experts.h"

#include "kernels/gelu/gelu.h"
#include "kernels/grouped_linear/grouped_linear.h"
#include "nn/init.h"
#include "nn/mlp.h"

namespace lockstep::nn {
namespace {

int64_t Inner(const TransformerOptions& o) {
  return o.mixture.n_inner > 0 ? o.mixture.n_inner : o.n_inner > 0 ? o.n_inner : 4 * o.n_embd;
}

}  // namespace

GroupedLinear::GroupedLinear(int64_t n_expert, int64_t in_features, int64_t out_features,
                             Initializer init) {
  LS_CHECK(n_expert > 0 && in_features > 0 && out_features > 0,
           "GroupedLinear needs positive sizes, got ", n_expert, " experts, ", in_features,
           " inputs and ", out_features, " outputs");
  weight_ = AddParameter("weight", {n_expert, out_features, in_features}, std::move(init),
                         /*decay=*/true);
}

GroupedLinear::GroupedLinear(std::shared_ptr<Parameter> weight) : weight_(std::move(weight)) {
  ShareParameter("weight", weight_);
}

Tensor GroupedLinear::Forward(const Tensor& rows, const Tensor& offsets) {
  return ops::GroupedLinear(rows, *weight_, offsets);
}

Experts::Experts(const TransformerOptions& o)
    : activation_(o.activation),
      c_fc_(this, "c_fc",
            std::make_shared<GroupedLinear>(o.mixture.n_expert, o.n_embd,
                                            IsGated(o.activation) ? 2 * Inner(o) : Inner(o),
                                            Normal(0, o.init_std))),
      c_proj_(this, "c_proj",
              std::make_shared<GroupedLinear>(o.mixture.n_expert, Inner(o), o.n_embd,
                                              Normal(0, o.residual_std))) {}

Tensor Experts::Activate(const Tensor& inner) const {
  return activation_ == MlpActivation::kGelu ? ops::Gelu(inner) : ActivateMlp(activation_, inner);
}

Tensor Experts::Forward(const Tensor& rows, const Tensor& offsets) {
  return c_proj_(Activate(c_fc_(rows, offsets)), offsets);
}

}  // namespace lockstep::nn
