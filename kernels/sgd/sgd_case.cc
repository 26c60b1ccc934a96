#include "kernels/op_case/update_case.h"
#include "kernels/sgd/sgd.h"

namespace lockstep {
namespace {

using Case = UpdateCase<SgdHyper>;

void Reference(const Case& c, const SgdHyper& h, const RefTensor& g, RefTensor& p,
               std::span<RefTensor> states) {
  RefTensor& m = states[0];
  const double lr = c.Lr();
  for (size_t i = 0; i < p.data.size(); ++i) {
    double step = g.data[i] + c.weight_decay * p.data[i];
    if (h.momentum > 0) {
      m.data[i] = h.momentum * m.data[i] + step;
      step = h.nesterov ? step + h.momentum * m.data[i] : m.data[i];
    }
    p.data[i] -= lr * step;
  }
}

OpCase Make() {
  const Case c = {.name = "sgd",
                  .update = ops::SgdUpdate,
                  .states = kSgdStates,
                  .reference = Reference,
                  .hyper = {.momentum = 0.9},
                  .lr = 0.1,
                  .weight_decay = 0.1,
                  .flops = 7};
  constexpr SgdHyper kPlain = {}, kNesterov = {.momentum = 0.9, .nesterov = true};
  return c.Case({c.Sample("plain", {.shape = {7, 13}}, kPlain),
                 c.Sample("master, plain", {.shape = {7, 13}}, kPlain, true),
                 c.Sample("nesterov", {.shape = {7, 13}}, kNesterov),
                 c.Sample("nesterov, several chunks", {.shape = {3, 11003}}, kNesterov)},
                {c.Error(
                    "momentum of 1", [](auto&, auto& hyper) { hyper.momentum = 1; },
                    "momentum must be in [0, 1), got 1")});
}

const bool registered = RegisterOpCase(Make());

}  // namespace
}  // namespace lockstep
