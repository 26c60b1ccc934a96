// Adapters and the weights that they belong to.
#pragma once

#include <functional>
#include <string>

#include "models/gpt/peft/adapter.h"

namespace lockstep::models {

// HashOfWeights of a folder, as it is recorded in the files of its adapters (kBaseHashEntry).
std::string HashOfBase(const std::string& folder);

// Throws InputError if the adapter belongs to other weights than those in the folder `base`. An
// adapter that another program wrote only names its base: `warn` (default: a line to std::cerr) is
// told if that is not the folder's name.
void CheckBase(const PeftAdapter& adapter, const std::string& base,
               const std::function<void(const std::string&)>& warn = {});

}  // namespace lockstep::models
