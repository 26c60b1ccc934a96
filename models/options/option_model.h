// Options of the model's shape: model.*, with those of rotary embeddings and mixtures of experts.
#pragma once

#include "models/options/config.h"

namespace lockstep::models {

void AddModelOptions(Options& options, ModelOptions& model);

}  // namespace lockstep::models
