// The shape of a run's model, made from its options.
#pragma once

#include "models/gpt/gpt_config.h"
#include "models/options/config.h"

namespace lockstep::models {

// The shape that the options describe; vocab_size is copied, even if it is 0.
GptConfig ToGptConfig(const ModelOptions& model);

// Sets what the options say of a mixture and is no part of a model's shape: the coefficients of its
// losses, and the rate of its biases.
void SetCoefficients(const ModelOptions& model, nn::MixtureOptions* mixture);

}  // namespace lockstep::models
