// The router of a mixture of experts, as a module.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "core/module.h"
#include "kernels/expert_dispatch/expert_dispatch.h"
#include "kernels/router_loss/router_loss.h"
#include "nn/transformer_options.h"

namespace lockstep::nn {

// Where the tokens of a batch go, N of them, k experts each.
struct Routes {
  Tensor gates;       // [N, k]
  ExpertOrder order;  // of the (token, slot) pairs
};

template <class F>
void ForEachTensor(const Routes& routes, const F& f) {
  f(routes.gates);
}

// x [B, T, n_embd] -> Routes, with N = B T: logits = x weight^T, in f32 (f64 for f64 models; never
// TF32), the best n_expert_used of each token (ops::TopExperts), their gates (ops::ExpertGates). In
// backward the router's losses (ops::RouterLoss) join in, see nn/mixture/auxiliary_loss.h.
// Parameters: weight [n_expert, n_embd]. Buffers: with sigmoid scores bias f32 [n_expert]; it is
// not a parameter, and ExpertLoads moves it after each step.
//
// The choice is kept where the forward is recomputed (core/autograd/recompute.h). In a training
// step it counts the load of the experts, once per forward, even if that runs again.
class ExpertRouter : public ModuleOf<Routes(const Tensor&)> {
 public:
  // Reads n_embd, init_std and mixture. Throws ArgumentError if these do not fit together.
  explicit ExpertRouter(const TransformerOptions& options);

  int64_t n_expert() const { return options_.n_expert; }
  // The amount by which a step moves biases: 0 while the weight is frozen, since the biases belong
  // to it.
  double bias_rate() const { return weight_->trainable() ? options_.bias_rate : 0; }
  // Whether another rank of a pipeline has this layer, and runs it.
  bool is_elsewhere() const { return weight_->value().numel() == 0; }
  // Where x is a part of each sequence (context parallelism): what makes the scalar that stands for
  // the losses of the chosen experts, and what counts loads, by CountLoad.
  struct Parts {
    std::function<Tensor(const Tensor& logits, const Tensor& experts, const RouterLossOptions&)>
        loss;
    std::function<void(const ExpertOrder&)> count;
  };
  void SetParts(Parts parts) { parts_ = std::move(parts); }
  // Uses only the offsets.
  void CountLoad(const ExpertOrder& order);
  // f32 [n_expert], or undefined.
  const Tensor& bias() const;
  // i64 [n_expert]: how many pairs each expert had in the step's forwards so far; undefined before
  // the first.
  const Tensor& load() const { return load_; }

 protected:
  Routes Forward(const Tensor& x) override;

 private:
  Tensor Logits(const Tensor& x) const;

  MixtureOptions options_;
  std::shared_ptr<Parameter> weight_;
  Tensor* bias_ = nullptr;
  Tensor load_;
  Parts parts_;  // empty: x has whole sequences
};

}  // namespace lockstep::nn
