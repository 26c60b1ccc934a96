// A GPT on several ranks: which of its layers are shared out how.
#pragma once

#include "dist/tensor/parallelize.h"
#include "models/gpt/gpt.h"

namespace lockstep::models {

// How tensor-parallel ranks share out a model of this shape.
dist::TensorPlan GptTensorPlan(const GptConfig& config);

// Gives this rank its part of the model, before an optimizer holds its parameters. With one rank
// and one part the model stays as it is. Throws ArgumentError for sizes that do not divide.
void Parallelize(Gpt& model, const dist::TensorRanksPtr& ranks);

}  // namespace lockstep::models
