// What a run minimises, and by what: its objective, optimizer, schedule and loss scale, made from
// its setup.
#pragma once

#include <memory>
#include <optional>

#include "core/module.h"
#include "kernels/loss_scale/loss_scale.h"
#include "models/preference/dpo.h"
#include "models/train/run_setup.h"
#include "models/train/step/objective.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"

namespace lockstep::models {

// train.objective, of this model.
std::unique_ptr<const Objective> MakeObjective(const RunConfig& config, LanguageModel& model);
DpoOptions ToDpoOptions(const DpoRunOptions& options);

// With its state: fresh, or from the checkpoint, of which workers take `rank`'s (WorkerStateOf). A
// rank takes memory only for its parts of a sharded model's state.
std::unique_ptr<optim::Optimizer> MakeOptimizer(const RunSetup& setup, const Module& model,
                                                int64_t rank);
// The name of the file of that kind in the checkpoint that `rank` goes on from: WorkerFile, where
// this run and that of the checkpoint have workers. If there are more than were saved, several
// begin with the state of one.
std::string WorkerStateOf(const RunSetup& setup, const std::string& kind, int64_t rank);
// A fresh one for a materialised model, with a group for each learning rate and weight decay that
// parameters have. "muon" takes the matrices of the blocks, h.*, but not those of routers and
// gates. A weight decay that falls needs optim.decay_steps to be settled.
std::unique_ptr<optim::Optimizer> MakeFreshOptimizer(const RunSetup& setup, const Module& model);
std::unique_ptr<optim::Optimizer> MakeOptimizer(const OptimOptions& options, const Module& model,
                                                const OffloadChoice& offload = {});
// Of a configuration whose schedule SettleSchedule has settled. With train.time_budget, until the
// clock has settled the decay, it has none.
optim::LrSchedule MakeSchedule(const RunConfig& config);
// For fp16.
std::optional<LossScaleOptions> LossScalingFor(const TrainOptions& train);

}  // namespace lockstep::models
