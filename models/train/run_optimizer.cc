#include "models/train/run_optimizer.h"

#include "models/checkpoint/checkpoint.h"
#include "models/preference/preference_objective.h"
#include "models/train/run_data.h"
#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/sgd.h"

namespace lockstep::models {

std::unique_ptr<const Objective> MakeObjective(const RunConfig& config, LanguageModel& model) {
  if (!Prefers(config)) return std::make_unique<LanguageObjective>();
  return std::make_unique<PreferenceObjective>(model, ToDpoOptions(config.dpo));
}

DpoOptions ToDpoOptions(const DpoRunOptions& o) {
  return {.loss = o.loss == "ipo" ? DpoLossKind::kIpo : DpoLossKind::kSigmoid,
          .beta = o.beta,
          .label_smoothing = o.label_smoothing};
}

std::unique_ptr<optim::Optimizer> MakeOptimizer(const RunSetup& setup, const Module& model) {
  auto optimizer = MakeFreshOptimizer(setup, model);
  if (setup.start.checkpoint) LoadOptimizerState(*setup.start.checkpoint, *optimizer);
  return optimizer;
}

std::unique_ptr<optim::Optimizer> MakeFreshOptimizer(const RunSetup& setup, const Module& model) {
  return MakeOptimizer(setup.config.optim, model, setup.model.offload);
}

std::unique_ptr<optim::Optimizer> MakeOptimizer(const OptimOptions& o, const Module& model,
                                                const OffloadChoice& choice) {
  const DType state_dtype = WeightDType(o.state_dtype);
  const optim::StateOffload offload{.to_host = choice.optimizer};
  if (o.name == "sgd") {
    return std::make_unique<optim::Sgd>(model.Parameters(),
                                        optim::SgdOptions{.momentum = o.momentum,
                                                          .nesterov = o.nesterov && o.momentum > 0,
                                                          .weight_decay = o.weight_decay,
                                                          .master_weights = o.master_weights,
                                                          .state_dtype = state_dtype,
                                                          .offload = offload});
  }
  if (o.name == "lion") {
    return std::make_unique<optim::Lion>(model.Parameters(),
                                         optim::LionOptions{.beta1 = o.beta1,
                                                            .beta2 = o.beta2,
                                                            .weight_decay = o.weight_decay,
                                                            .master_weights = o.master_weights,
                                                            .state_dtype = state_dtype,
                                                            .offload = offload});
  }
  if (o.name == "muon") {
    // Rows of a router's matrix are scores of its own for each expert: no map of a hidden space.
    const auto hidden = [](const Parameter& p) {
      const std::string& name = p.name();
      return p.logical_shape().ndim() == 2 && name.starts_with("h.") &&
             !name.ends_with(".router.weight") && !name.ends_with(".shared_gate.weight");
    };
    return std::make_unique<optim::Muon>(model.Parameters(),
                                         optim::MuonOptions{.momentum = o.momentum,
                                                            .nesterov = o.nesterov,
                                                            .weight_decay = o.weight_decay,
                                                            .master_weights = o.master_weights,
                                                            .state_dtype = state_dtype,
                                                            .offload = offload,
                                                            .matrix = hidden,
                                                            .beta1 = o.beta1,
                                                            .beta2 = o.beta2,
                                                            .eps = o.eps});
  }
  LS_INVARIANT(o.name == "adamw", "no optimizer ", o.name);
  return std::make_unique<optim::AdamW>(model.Parameters(),
                                        optim::AdamWOptions{.beta1 = o.beta1,
                                                            .beta2 = o.beta2,
                                                            .eps = o.eps,
                                                            .weight_decay = o.weight_decay,
                                                            .master_weights = o.master_weights,
                                                            .state_dtype = state_dtype,
                                                            .offload = offload});
}

optim::LrSchedule MakeSchedule(const RunSetup& setup) {
  const OptimOptions& o = setup.config.optim;
  return optim::LrSchedule({.decay = optim::ParseLrDecay(o.schedule),
                            .lr = o.lr,
                            .min_lr = o.min_lr,
                            .warmup = o.warmup,
                            .decay_steps = o.decay_steps,
                            .wsd_fraction = o.decay_fraction});
}

std::optional<LossScaleOptions> LossScalingFor(const TrainOptions& train) {
  if (train.precision != "fp16") return {};
  return LossScaleOptions{.init = train.loss_scale, .growth_interval = train.loss_scale_every};
}

}  // namespace lockstep::models
