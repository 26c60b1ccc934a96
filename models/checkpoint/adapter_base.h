// Adapters and the weights that they belong to.
#pragma once

#include <functional>
#include <string>

#include "models/gpt/peft/adapter.h"

namespace lockstep::models {

// HashOfWeights of a folder, as the files of its adapters have it (kBaseHashEntry).
std::string HashOfBase(const std::string& folder);

// InputError if the adapter belongs to other weights than those in the folder `base`. One that
// another program wrote has only a name: `warn` (default: a line to std::cerr) is told where that
// is not the folder's.
void CheckBase(const PeftAdapter& adapter, const std::string& base,
               const std::function<void(const std::string&)>& warn = {});

}  // namespace lockstep::models
