// A GPT on several ranks: which of its layers are shared out how.
#pragma once

#include "dist/context/context_ranks.h"
#include "dist/tensor/parallelize.h"
#include "models/gpt/gpt.h"
#include "models/options/config.h"

namespace lockstep::models {

// How tensor-parallel ranks share out a model of this shape.
dist::TensorPlan GptTensorPlan(const GptConfig& config);

// Gives this rank its part of the model, before an optimizer holds its parameters. With one rank
// and one part the model stays as it is. Throws ArgumentError for sizes that do not divide.
void Parallelize(Gpt& model, const dist::TensorRanksPtr& ranks);

// Whether parallel.cp leaves the sum of its ranks' gradients to those of data-parallel ones.
bool SumsContextWithData(const RunConfig& config);
// The ranks of parallel.cp and virtual.cp. Null: sequences are not cut.
dist::ContextRanksPtr ContextRanksOf(const RunConfig& config, dist::ProcessGroup* group);
// Has them compute each sequence together, before an optimizer holds the model's parameters.
void ShareSequences(Gpt& model, const dist::ContextRanksPtr& ranks);

}  // namespace lockstep::models
