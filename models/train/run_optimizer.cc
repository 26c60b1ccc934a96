#include "models/train/run_optimizer.h"

#include "models/checkpoint/checkpoint.h"
#include "models/preference/preference_objective.h"
#include "models/train/parallel_plan.h"
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

std::unique_ptr<optim::Optimizer> MakeOptimizer(const RunSetup& setup, const Module& model,
                                                int64_t rank) {
  auto optimizer = MakeFreshOptimizer(setup, model);
  if (setup.start.checkpoint) {
    LoadOptimizerState(*setup.start.checkpoint, *optimizer,
                       WorkerStateOf(setup, "optimizer", rank));
  }
  return optimizer;
}

std::string WorkerStateOf(const RunSetup& setup, const std::string& kind, int64_t rank) {
  const int64_t saved = ReadTrainerState(*setup.start.checkpoint).workers;
  return WorkerFile(kind, WorkersOf(setup) > 0 && saved > 0 ? rank % saved : 0);
}

std::unique_ptr<optim::Optimizer> MakeFreshOptimizer(const RunSetup& setup, const Module& model) {
  return MakeOptimizer(setup.config.optim, model, setup.model.offload);
}

std::unique_ptr<optim::Optimizer> MakeOptimizer(const OptimOptions& o, const Module& model,
                                                const OffloadChoice& choice) {
  const auto with = [&](auto options) {  // what all have in common
    options.weight_decay = o.weight_decay;
    options.master_weights = o.master_weights;
    options.state_dtype = WeightDType(o.state_dtype);
    options.offload = {.to_host = choice.optimizer};
    return options;
  };
  const auto parameters = model.Parameters();
  if (o.name == "sgd") {
    const bool nesterov = o.nesterov && o.momentum > 0;
    return std::make_unique<optim::Sgd>(
        parameters, with(optim::SgdOptions{.momentum = o.momentum, .nesterov = nesterov}));
  }
  if (o.name == "lion") {
    return std::make_unique<optim::Lion>(
        parameters, with(optim::LionOptions{.beta1 = o.beta1, .beta2 = o.beta2}));
  }
  if (o.name == "muon") {
    // Rows of a router's matrix are scores of its own for each expert, those of an
    // embedding vectors of their own: no map of a hidden space.
    const auto hidden = [](const Parameter& p) {
      const std::string& name = p.name();
      return p.logical_shape().ndim() == 2 && name.starts_with("h.") && !IsValueEmbed(name) &&
             !name.ends_with(".router.weight") && !name.ends_with(".shared_gate.weight");
    };
    return std::make_unique<optim::Muon>(parameters, with(optim::MuonOptions{.momentum = o.momentum,
                                                                             .nesterov = o.nesterov,
                                                                             .matrix = hidden,
                                                                             .beta1 = o.beta1,
                                                                             .beta2 = o.beta2,
                                                                             .eps = o.eps}));
  }
  LS_INVARIANT(o.name == "adamw", "no optimizer ", o.name);
  return std::make_unique<optim::AdamW>(
      parameters, with(optim::AdamWOptions{.beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps}));
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
