#include "kernels/lion/lion.h"
#include "kernels/op_case/update_case.h"

namespace lockstep {
namespace {

using Case = UpdateCase<LionHyper>;

void Reference(const Case& c, const LionHyper& h, const RefTensor& g, RefTensor& p,
               std::span<RefTensor> states) {
  RefTensor& m = states[0];
  const double lr = c.Lr();
  for (size_t i = 0; i < p.data.size(); ++i) {
    const double direction = h.beta1 * m.data[i] + (1 - h.beta1) * g.data[i];
    p.data[i] *= 1 - lr * c.weight_decay;
    if (direction != 0) p.data[i] -= direction > 0 ? lr : -lr;
    m.data[i] = h.beta2 * m.data[i] + (1 - h.beta2) * g.data[i];
  }
}

OpCase Make() {
  const Case c = {.name = "lion",
                  .update = ops::LionUpdate,
                  .states = kLionStates,
                  .reference = Reference,
                  .hyper = {.beta1 = 0.9, .beta2 = 0.95},
                  .lr = 0.1,
                  .weight_decay = 0.3,
                  .flops = 10};
  // Where gradient and momentum are 0 the parameter only decays.
  OpSample zeros = c.Sample("zeros", {.shape = {7}}, c.hyper);
  for (size_t i : {1, 2}) zeros.inputs[i].low = zeros.inputs[i].high = 0;
  return c.Case({zeros}, {c.Error(
                             "beta of 1", [](auto&, auto& hyper) { hyper.beta2 = 1; },
                             "betas must be in [0, 1), got 1")});
}

const bool registered = RegisterOpCase(Make());

}  // namespace
}  // namespace lockstep
