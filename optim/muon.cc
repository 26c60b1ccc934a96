#include "optim/muon.h"

#include "optim/adamw.h"

namespace lockstep::optim {
namespace {

UpdateRule RuleOfMatrices(const MuonOptions& options) {
  CheckRange("Muon", "momentum", options.momentum, 0, 1);
  CheckRange("Muon", "steps", options.steps, 1, 100);
  const MuonHyper hyper = {.momentum = options.momentum,
                           .nesterov = options.nesterov,
                           .steps = options.steps,
                           .scale = options.scale,
                           .dtype = options.dtype,
                           .decay = options.decay};
  return {.states = {std::begin(kMuonStates), std::end(kMuonStates)},
          .update = [hyper](auto tensors, const Betas&,
                            const auto& state) { ops::MuonUpdate(tensors, hyper, state); },
          .takes =
              [chooses = options.matrix](const Parameter& p) {
                const bool two = p.logical_shape().ndim() == 2;
                const bool chosen = chooses ? chooses(p) : two;
                LS_CHECK(!chosen || two, "Muon: the parameter '", p.name(),
                         "' was chosen as a matrix, but is ", p.value().Describe(),
                         ": leave it to AdamW");
                return chosen;
              },
          .whole = true,
          .segments = options.segments};
}

}  // namespace

Muon::Muon(std::vector<ParameterGroup> groups, const MuonOptions& options)
    : Optimizer(std::move(groups),
                {.name = "Muon",
                 .rules = {RuleOfMatrices(options), AdamW::Rule(options.eps, options.decay)},
                 .weight_decay = options.weight_decay,
                 .master_weights = options.master_weights,
                 .state_dtype = options.state_dtype,
                 .betas = Betas{options.beta1, options.beta2},
                 .offload = options.offload,
                 .ema = options.ema}) {}

}  // namespace lockstep::optim
