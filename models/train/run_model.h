// What is made from a run's setup: its model, and what it minimises, and by what: objective,
// optimizer, schedule and loss scale.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/module.h"
#include "kernels/loss_scale/loss_scale.h"
#include "models/gpt/gpt.h"
#include "models/preference/dpo.h"
#include "models/train/run_setup.h"
#include "models/train/step/objective.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"

namespace lockstep::models {

// Allocates the weights in the dtype of train.precision: for bf16 and fp16 they have 16 bits;
// gradients are in train.grad_dtype. Without weights to load, initialises all of them; else only
// adapters, which those may lack. The meta device is for planning.
void MaterializeFor(const RunSetup& setup, Device device, Module& model);

// What decides the bits of a run besides its configuration, as far as programs of this version
// differ: cpu::DescribeProducts, or a GPU's name.
std::string ArithmeticOf(const RunSetup& setup);

// Gives a model of setup.model its weights: initialised, from init_from, or from the checkpoint. Of
// a model that is sharded already, a rank takes memory only for its parts. Of an elastic run that
// goes on from StateCopies, only memory: Load gives it its weights.
void FillModel(const RunSetup& setup, Gpt& model);

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
