// The frozen base of adapters, in 4 bits: Dettmers et al., "QLoRA: efficient finetuning of
// quantized LLMs" (2023).
#pragma once

#include "models/gpt/gpt.h"

namespace lockstep::models {

// Quantises the matrices of attention and MLPs (nn::QuantizeLinear), also where they have adapters,
// each divided as in a Hugging Face folder: queries, keys and values apart, gate and up apart.
// Embedding, head, norms, routers and experts stay as they are. LoadHfWeights then quantises each
// matrix as it is read, so that a model without memory never has the unquantised ones.
void QuantizeBase(Gpt& model, bool double_quantized = true);

}  // namespace lockstep::models
