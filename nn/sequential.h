// Layers one after the other.
#pragma once

#include <concepts>
#include <initializer_list>
#include <memory>
#include <vector>

#include "core/module.h"

namespace lockstep::nn {

// y = last(... second(first(x))). Children are named "0", "1", ...; none: y is x.
//   Sequential mlp({std::make_shared<Linear>(784, 128), std::make_shared<Relu>(),
//                   std::make_shared<Linear>(128, 10)});
// or
//   Sequential mlp;
//   mlp.Add<Linear>(784, 128);
class Sequential : public Layer {
 public:
  Sequential() = default;
  Sequential(std::initializer_list<std::shared_ptr<Layer>> layers);
  void Add(std::shared_ptr<Layer> layer);
  // The same with one that is made here.
  template <std::derived_from<Layer> C, class... Args>
  C& Add(Args&&... args) {
    const auto layer = std::make_shared<C>(std::forward<Args>(args)...);
    Add(std::shared_ptr<Layer>(layer));
    return *layer;
  }
  int64_t size() const { return std::ssize(layers_); }

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  std::vector<std::unique_ptr<Child<Layer>>> layers_;
};

}  // namespace lockstep::nn
