// A GPT on several ranks: how its layers, weights and samples are divided among them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/context/context_ranks.h"
#include "dist/tensor/parallelize.h"
#include "models/gpt/gpt.h"
#include "models/train/parallel_plan.h"
#include "models/train/step/step_ranks.h"

namespace lockstep::models {

// How a model of this shape is split across tensor-parallel ranks.
dist::TensorPlan GptTensorPlan(const GptConfig& config);

// Gives this rank its part of each layer, before an optimizer holds the parameters. With one rank
// and one part the model stays as it is. Throws InputError for sizes that do not divide, which the
// user's model and number of ranks decide.
void ParallelizeLayers(Gpt& model, const dist::TensorRanksPtr& ranks);

// Splits the layers and, where plan.context_pairs is above 1, the sequences across ranks. Returns
// the ranks that compute a sequence, or a layer, together; there may be only one.
dist::TensorRanksPtr ShareLayers(Gpt& model, const MeshGroups& groups, const ParallelPlan& plan);

// Collective over the ranks that compute layers or sequences together, between steps. Throws
// dist::ReplicaError if their common tensors differ. dist::DataRanks checks data ranks. `when` is
// for the message, "after step 100".
void CheckReplicas(const Gpt& model, const MeshGroups& groups, const ParallelPlan& plan,
                   const std::string& when);

// Divides everything among ranks: stages, layers, sequences, samples and, with these, weights.
// `materialize` gives the model memory: with on_meta on the meta device, where a sharded model
// needs dtypes first; then on its own device, filled with this rank's part of the weights.
// Collective over all ranks of the mesh; groups and model outlive the result. Throws ArgumentError
// and InputError.
std::unique_ptr<StepRanks> Parallelize(Gpt& model, const MeshGroups& groups,
                                       const ParallelPlan& plan,
                                       const std::function<void(bool on_meta)>& materialize);

// The last part of Parallelize: of a model that has its weights, and whose layers were shared
// before, by a plan of the same sizes, among the parts of one process at most (virtual.tp,
// virtual.cp). Collective, as that is.
std::unique_ptr<StepRanks> ShareSamples(Gpt& model, const MeshGroups& groups,
                                        const ParallelPlan& plan);

}  // namespace lockstep::models
