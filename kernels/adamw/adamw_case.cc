#include <cmath>

#include "kernels/adamw/adamw.h"
#include "kernels/op_case/update_case.h"

namespace lockstep {
namespace {

using Case = UpdateCase<AdamWHyper>;
constexpr AdamWHyper kHyper = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
constexpr int kCorrection = 1;

void Reference(const Case& c, const AdamWHyper& h, const RefTensor& g, RefTensor& p,
               std::span<RefTensor> states) {
  RefTensor &m = states[0], &v = states[1];
  const BiasCorrection correction = c.Values().corrections[kCorrection];
  const double lr = c.Lr();
  for (size_t i = 0; i < p.data.size(); ++i) {
    m.data[i] = h.beta1 * m.data[i] + (1 - h.beta1) * g.data[i];
    v.data[i] = h.beta2 * v.data[i] + (1 - h.beta2) * g.data[i] * g.data[i];
    const double update =
        lr * (m.data[i] / correction.first) / (std::sqrt(v.data[i] / correction.second) + h.eps);
    p.data[i] = c.Decayed(p.data[i], update, lr, h.decay) - update;
  }
}

OpCase Make() {
  const Case c = {.name = "adamw",
                  .update = ops::AdamWUpdate,
                  .states = kAdamWStates,
                  .reference = Reference,
                  .hyper = kHyper,
                  .lr = 0.01,
                  .weight_decay = 0.1,
                  .flops = 14,
                  .betas = {{0.5, 0.6}, {kHyper.beta1, kHyper.beta2}},
                  .last_state_low = 0};  // a mean of squares
  const auto decaying = [&](const std::string& name, const DecoupledDecay& decay) {
    AdamWHyper hyper = kHyper;
    hyper.decay = decay;
    return c.Sample(name, {.shape = {7, 130}}, hyper);
  };
  return c.Case(
      {decaying("cautious decay", {.cautious = true}), decaying("decay at a quarter", {.steps = 4}),
       decaying("decay that has ended", {.cautious = true, .steps = 2})},
      {c.Error(
           "beta of 1", [](auto&, auto& hyper) { hyper.beta2 = 1; },
           "betas must be in [0, 1), got 1"),
       c.Error(
           "negative eps", [](auto&, auto& hyper) { hyper.eps = -1; },
           "eps must not be negative, got -1")});
}

const bool registered = RegisterOpCase(Make());

}  // namespace
}  // namespace lockstep
