// The model that generates text: its weights, how many bits they have, and its adapter.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "dist/tensor/tensor_ranks.h"
#include "models/gpt/gpt.h"
#include "models/gpt/peft/adapter.h"

namespace lockstep::models {

// The storage of attention and MLP matrices: "model" (f32), or in 4 bits "nf4" or "nf4_single", as
// in lora.base. It is `option`, unless that is "auto": then it is what the base had on which the
// adapters (those of `folder` and of the list) were trained or, without adapters, what the folder
// has. InputError if adapters were trained on different bases.
std::string BaseFor(const std::string& option, const std::string& folder,
                    const std::vector<PeftAdapter>& adapters);

// The model of a checkpoint or a Hugging Face folder, on this device. `base` is BaseFor's: matrices
// in 4 bits are quantised one by one as they are read, and the unquantised model is never in
// memory. `adapter` may be null; an adapter in the folder itself is in effect without it. Each of
// `ranks` has its part. `averages`: of the weights, by LoadAverages. InputError if the adapter does
// not fit the model, and for weights in 4 bits in several parts.
std::unique_ptr<Gpt> LoadSampledModel(const std::string& folder, const std::string& base,
                                      const PeftAdapter* adapter, const dist::TensorRanksPtr& ranks,
                                      Device device, bool averages = false);

// InputError if a model of this shape cannot be split across `ranks` ranks.
void CheckDivides(const GptConfig& shape, int ranks);

}  // namespace lockstep::models
