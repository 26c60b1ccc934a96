// The shape of a run's model, made from its options.
#pragma once

#include "models/gpt/gpt_config.h"
#include "models/options/config.h"

namespace lockstep::models {

// The shape that the options describe; vocab_size is copied, even if it is 0.
GptConfig ToGptConfig(const ModelOptions& model);

// The inverse: the options of a model of this shape. What is no part of the weights (dropout, the
// coefficients of a mixture's losses), what is left to the data (a vocab_size of 0) and the length
// of the windows are those of `model`.
ModelOptions ToModelOptions(const GptConfig& shape, const ModelOptions& model);

// Sets what the options say of a mixture and is no part of a model's shape: the coefficients of its
// losses, and the rate of its biases.
void SetCoefficients(const ModelOptions& model, nn::MixtureOptions* mixture);

}  // namespace lockstep::models
