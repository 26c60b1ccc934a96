// The shape of a run's model, made from its options or taken from the weights that it starts from.
#pragma once

#include <string>

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

// The shape of the weights in the folder `path`, with what the options say of training them:
// dropout, adapters, the coefficients of a mixture's losses. The options of `config` are set to
// that shape; one that the user wrote and that says otherwise is an InputError.
GptConfig ShapeFromWeights(const Options& options, const std::string& path, RunConfig* config);

}  // namespace lockstep::models
