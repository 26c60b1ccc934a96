// Models as Hugging Face folders: model.safetensors and config.json of GPT-2, which transformers
// loads as GPT2LMHeadModel.
#pragma once

#include <string>
#include <vector>

#include "core/safetensors_writer.h"
#include "models/gpt.h"

namespace lockstep::models {

// config.json for a model.
std::string ToHfConfig(const GptConfig& config);
// The inverse; also reads OpenAI's own GPT-2 folders. InputError names `source` and the field.
GptConfig FromHfConfig(const std::string& json, const std::string& source);

// The model's weights under Hugging Face's names, Conv1D weights as [in, out]. A model without
// biases gets zeros for them, since the format always has them.
std::vector<SafetensorsItem> ToHfTensors(Gpt& model);

// Copies the weights of a file or folder (model.safetensors, or shards with an index) into the
// model. Accepts the prefix "transformer." and a tied lm_head.weight. InputError lists what is
// missing or has another shape, and refuses non-zero biases for a model without.
void LoadHfWeights(Gpt& model, const std::string& path);

// "path/config.json" read by FromHfConfig; `path` is a Hugging Face folder or a checkpoint of ours.
GptConfig ReadHfConfig(const std::string& path);

}  // namespace lockstep::models
