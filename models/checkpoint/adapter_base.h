// Adapters and the weights that they belong to.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/gpt/gpt.h"
#include "models/gpt/peft/adapter.h"
#include "nn/lora/add_lora.h"

namespace lockstep::models {

// HashOfWeights of a folder, as the files of its adapters have it (kBaseHashEntry).
std::string HashOfBase(const std::string& folder);

// InputError if the adapter belongs to other weights than those in the folder `base`. One that
// another program wrote has only a name: `warn` (default: a line to std::cerr) is told where that
// is not the folder's.
void CheckBase(const PeftAdapter& adapter, const std::string& base,
               const std::function<void(const std::string&)>& warn = {});

struct MergedModel {
  std::unique_ptr<Gpt> model;  // without adapters, on the CPU
  DType dtype = DType::kF32;   // in which it is to be written, without a further rounding
  std::vector<nn::LoraMergeLoss> losses;  // what the rounding to it took of each matrix's adapter
};
// Weights with an adapter merged into them: W + scale B A, computed in f32 and rounded once, to
// `dtype` (default: that of the weights). `base` may be empty: then it is the folder that the
// adapter names. What the adapter has whole (modules_to_save) replaces the weights.
MergedModel MergeAdapter(const std::string& base, const std::string& adapter,
                         std::optional<DType> dtype = {});

}  // namespace lockstep::models
