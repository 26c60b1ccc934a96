// A GPT on several ranks: which of its layers, weights and samples are shared out how.
#pragma once

#include <functional>
#include <memory>

#include "dist/context/context_ranks.h"
#include "dist/tensor/parallelize.h"
#include "models/gpt/gpt.h"
#include "models/train/parallel_plan.h"

namespace lockstep::models {

// How tensor-parallel ranks share out a model of this shape.
dist::TensorPlan GptTensorPlan(const GptConfig& config);

// Gives this rank its part of each layer, before an optimizer holds the parameters. With one rank
// and one part the model stays as it is. Throws ArgumentError for sizes that do not divide.
void Parallelize(Gpt& model, const dist::TensorRanksPtr& ranks);

// The same of layers and, with plan.context_pairs, of sequences: the ranks that compute a sequence
// together, or a layer, of which there may be one.
dist::TensorRanksPtr ShareLayers(Gpt& model, const MeshGroups& groups, const ParallelPlan& plan);

// The same of everything: stages, layers, sequences, samples and, with them, weights. `materialize`
// gives the model memory on a device: on the meta device, first, for dtypes; then on its own, with
// its weights, of which this rank then has its part only. A model with plan.pipeline is a
// PipelinedGpt. Collective over all ranks of the mesh; the groups outlive the result, and the model
// must too. Null if nothing is to be summed. Throws ArgumentError and InputError.
std::unique_ptr<dist::DataRanks> Parallelize(Gpt& model, const MeshGroups& groups,
                                             const ParallelPlan& plan,
                                             const std::function<void(bool on_meta)>& materialize);

}  // namespace lockstep::models
