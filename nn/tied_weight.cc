#include "nn/tied_weight.h"

namespace lockstep::nn {

Tensor TiedWeight::value() const {
  const Tensor& value = weight_->value();
  if (!gradient_holder_) return value;
  Tensor own = value.Detach();
  own.set_autograd(gradient_holder_->value().autograd());
  return own;
}

void TiedWeight::KeepApart(const std::string& name) {
  const Tensor& part = weight_->part();
  gradient_holder_ = std::make_shared<Parameter>(part.shape(), Initializer(), weight_->decay());
  gradient_holder_->set_name(name);
  gradient_holder_->SetValue(part.Detach());
  gradient_holder_->leaf().CountGradientUsers(
      1);  // the weight, to whose gradient this one is added
}

}  // namespace lockstep::nn
