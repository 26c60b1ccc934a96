#include "nn/tied_weight.h"

namespace lockstep::nn {

Tensor TiedWeight::value() const {
  const Tensor& value = weight_->value();
  if (!apart_) return value;
  Tensor own = value.Detach();
  own.set_autograd(apart_->value().autograd());
  return own;
}

void TiedWeight::KeepApart(const std::string& name) {
  const Tensor& part = weight_->part();
  apart_ = std::make_shared<Parameter>(part.shape(), Initializer(), weight_->decay());
  apart_->set_name(name);
  apart_->SetValue(part.Detach());
  apart_->leaf().CountOptimizers(1);  // that of the weight, to whose gradient this one is added
}

}  // namespace lockstep::nn
