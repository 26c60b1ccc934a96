#include "nn/sequential.h"

namespace lockstep::nn {

Sequential::Sequential(std::initializer_list<std::shared_ptr<Layer>> layers) {
  for (const auto& layer : layers) Add(layer);
}

void Sequential::Add(std::shared_ptr<Layer> layer) {
  layers_.push_back(std::make_unique<Child<Layer>>(this, StrCat(layers_.size()), std::move(layer)));
}

Tensor Sequential::Forward(const Tensor& x) {
  Tensor y = x;
  for (const auto& layer : layers_) y = (*layer)(y);
  return y;
}

}  // namespace lockstep::nn
