// The dtypes in which a model and its parts compute.
#pragma once

#include <memory>
#include <optional>

#include "core/module.h"

namespace lockstep::nn {

// The optimizer has dtypes of its own, for the originals of 16-bit weights (f32) and for its state
// (optim/adamw.h).
struct Precision {
  DType compute = DType::kF32;  // weights and activations
  // Gradients of parameters, as they are added up; f64 with f64. 16 bits are for a single process
  // that adds up few micro-batches: DataParallel and FullyShard take only f32, and throw otherwise.
  DType reduction = DType::kF32;
  std::optional<DType> output{};  // of a part's result; by default what the part was given
};

// A part of a model that computes in another precision than what surrounds it: casts what it is
// given and what it returns, but no integers. Names and parameters are those of the layer.
//   model.ReplaceChild("norm", std::make_shared<nn::InPrecision>(norm, nn::Precision{}));
//   nn::Materialize(model, device, seed, {.compute = DType::kBF16});
class InPrecision : public Layer {
 public:
  InPrecision(std::shared_ptr<Module> layer, const Precision& precision)
      : precision_(precision), base_(this, "", std::move(layer)) {}

  const Precision& precision() const { return precision_; }

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  Precision precision_;
  Child<Layer> base_;
};

// Module::Materialize in this precision, except for the parameters of parts that are InPrecision,
// which have their own. All gradients are in `reduction`.
void Materialize(Module& model, Device device, std::optional<uint64_t> seed,
                 const Precision& precision);

}  // namespace lockstep::nn
