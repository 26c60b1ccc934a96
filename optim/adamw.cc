#include "optim/adamw.h"

#include <cmath>

#include "kernels/adamw/adamw.h"

namespace lockstep::optim {
namespace {

void CheckOptions(const AdamWOptions& o) {
  LS_CHECK(o.beta1 >= 0 && o.beta1 < 1, "AdamW: beta1 must be in [0, 1), got ", o.beta1);
  LS_CHECK(o.beta2 >= 0 && o.beta2 < 1, "AdamW: beta2 must be in [0, 1), got ", o.beta2);
  LS_CHECK(o.eps >= 0 && std::isfinite(o.eps), "AdamW: eps must be finite and at least 0, got ",
           o.eps);
  LS_CHECK(o.weight_decay >= 0 && std::isfinite(o.weight_decay),
           "AdamW: weight_decay must be finite and at least 0, got ", o.weight_decay);
}

}  // namespace

AdamW::AdamW(std::vector<std::shared_ptr<Parameter>> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters)), options_(options) {
  CheckOptions(options);
  for (const auto& p : this->parameters()) {
    const Tensor value = p->value().Detach();
    const DType dtype = value.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
    Moments m;
    m.exp_avg = Tensor::Zeros(value.shape(), dtype, value.device());
    m.exp_avg_sq = Tensor::Zeros(value.shape(), dtype, value.device());
    if (options.master_weights && SizeOf(value.dtype()) == 2) m.master = value.To(DType::kF32);
    moments_.push_back(std::move(m));
  }
}

void AdamW::Update(const StepState& state) {
  std::vector<AdamWTensors> tensors;
  for (size_t i = 0; i < moments_.size(); ++i) {
    const Parameter& p = *parameters()[i];
    const Tensor grad = p.grad();
    if (!grad.defined()) continue;
    const Tensor value = p.value().Detach();
    const Moments& m = moments_[i];
    LS_CHECK(value.device() == m.exp_avg.device() && value.shape() == m.exp_avg.shape() &&
                 (value.dtype() == DType::kF64) == (m.exp_avg.dtype() == DType::kF64),
             "AdamW: the parameter '", p.name(), "' is ", value.Describe(),
             ", but its state was made for ", m.exp_avg.Describe(),
             ": make the optimizer after Materialize");
    LS_CHECK(value.device() == state.device(), "AdamW: the parameter '", p.name(), "' is on ",
             value.device(), ", the StepState on ", state.device());
    tensors.push_back({.value = value,
                       .grad = grad.Detach().Contiguous(),
                       .exp_avg = m.exp_avg,
                       .exp_avg_sq = m.exp_avg_sq,
                       .master = m.master,
                       .weight_decay = p.decay() ? options_.weight_decay : 0});
  }
  LS_CHECK(!tensors.empty(), "AdamW: none of the ", parameters().size(),
           " parameters has a gradient: run Backward before Step, and ZeroGrad after it");
  ops::AdamWUpdate(tensors, {options_.beta1, options_.beta2, options_.eps}, state);
}

NamedTensors AdamW::NamedState() const {
  NamedTensors out;
  for (size_t i = 0; i < moments_.size(); ++i) {
    const std::string& name = parameters()[i]->name();
    out.emplace_back(name + ".exp_avg", moments_[i].exp_avg);
    out.emplace_back(name + ".exp_avg_sq", moments_[i].exp_avg_sq);
    if (moments_[i].master.defined()) out.emplace_back(name + ".master", moments_[i].master);
  }
  return out;
}

}  // namespace lockstep::optim
