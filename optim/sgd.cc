#include "optim/sgd.h"

#include "kernels/sgd/sgd.h"

namespace lockstep::optim {
namespace {

UpdateRule Rule(const SgdOptions& options) {
  CheckRange("Sgd", "momentum", options.momentum, 0, 1);
  LS_CHECK(!options.nesterov || options.momentum > 0,
           "Sgd: nesterov needs momentum, which is 0: set it, such as momentum = 0.9");
  const SgdHyper hyper = {options.momentum, options.nesterov};
  UpdateRule rule{.states = {}, .update = [hyper](auto tensors, const Betas&, const auto& state) {
                    ops::SgdUpdate(tensors, hyper, state);
                  }};
  if (hyper.momentum > 0) rule.states = {std::begin(kSgdStates), std::end(kSgdStates)};
  return rule;
}

}  // namespace

Sgd::Sgd(std::vector<ParameterGroup> groups, const SgdOptions& options)
    : Optimizer(std::move(groups), {.name = "Sgd",
                                    .rules = {Rule(options)},
                                    .weight_decay = options.weight_decay,
                                    .master_weights = options.master_weights,
                                    .state_dtype = options.state_dtype,
                                    .betas = {},
                                    .offload = options.offload,
                                    .ema = options.ema}) {}

}  // namespace lockstep::optim
