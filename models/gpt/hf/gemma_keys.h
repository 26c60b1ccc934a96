// What Gemma 2 and 3 have in common.
#pragma once

#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {

GptConfig ReadGemmaKeys(const Fields& f, const LlamaDefaults& defaults);
// Null where transformers would refuse the sizes.
OrderedJson WriteGemmaKeys(const GptConfig& c, const char* model_type, const char* architecture);
std::vector<HfLayerName> GemmaNames();

}  // namespace lockstep::models
