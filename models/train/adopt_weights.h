// The shape of a run's model, taken from the weights that it starts from.
#pragma once

#include <string>

#include "models/gpt/gpt_config.h"
#include "models/options/config.h"

namespace lockstep::models {

// The shape of the weights in the folder `path`, with what the options say of training them:
// dropout, adapters, the coefficients of a mixture's losses. The options of `config` are set to
// that shape; one that the user wrote and that says otherwise is an InputError.
GptConfig ShapeFromWeights(const Options& options, const std::string& path, RunConfig* config);

}  // namespace lockstep::models
