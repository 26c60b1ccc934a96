// Low-rank adapters: what lora.* says of them.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::models {

struct LoraOptions {
#define LS_OPTION(type, name, initial, ...) type name = initial;
#include "models/options/lora_options.def"
#undef LS_OPTION

  bool quantizes() const { return base != "model" && (rank > 0 || !init_from.empty()); }

  bool operator==(const LoraOptions&) const = default;
};

}  // namespace lockstep::models
