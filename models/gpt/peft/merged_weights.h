// An adapter merged into the weights that it belongs to, as they are read and written.
#pragma once

#include <functional>

#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "nn/lora/add_lora.h"

namespace lockstep::models {

// The weights of a model with the adapter: W + scale B A, computed in f32 and rounded once, to
// `dtype`, a parameter at a time, so that there is never more than one in memory. `base` gives the
// whole of each W, in any dtype. What the adapter has as a whole (modules_to_save) replaces W.
// `lost`, if set, is called for each merged matrix with the share of its adapter that rounding
// removed. InputError if the adapter does not fit the model.
WeightSource MergedWeights(const GptConfig& config, const PeftAdapter& adapter, WeightSource base,
                           DType dtype, std::function<void(const nn::LoraMergeLoss&)> lost = {});

}  // namespace lockstep::models
