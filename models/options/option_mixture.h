// Options of mixtures of experts: those of ModelOptions from n_expert on.
#pragma once

#include <string>

#include "models/options/config.h"

namespace lockstep::models {

void AddMixtureOptions(Options& options, ModelOptions& model);

// Fails for what contradicts the rest, or has no effect. The model may be that of the weights of
// `weights`, a folder: then what the user did not write is the weights' or unused, and fits.
void CheckMixture(const Options& options, const ModelOptions& model,
                  const std::string& weights = "");

}  // namespace lockstep::models
