// A family of models in Hugging Face's files. To add one: a file such as qwen2.cc with its
// HfFamily, a declaration below, and a line in families.cc.
#pragma once

#include <string>
#include <vector>

#include "core/io/json.h"
#include "models/gpt/gpt_config.h"
#include "models/gpt/hf/fields.h"

namespace lockstep::models {

// How a family stores the parameters of a Gpt.
enum class HfLayout {
  kOwn,    // as they are
  kGpt2,   // with their names; linear weights transposed, and always with biases
  kLlama,  // q, k and v apart, gate and up apart; names of model.layers.0.self_attn.q_proj's kind
};

// What a layer of a Gpt ("ln_2") is called in the file ("post_attention_layernorm").
struct HfLayerName {
  std::string ours, theirs;
};

// The names of experts, within a layer.
struct HfExpertNames {
  std::string router, experts, gate, up, down;
};

struct HfFamily {
  std::string model_type;  // of config.json
  std::string title;       // in a run's summary
  HfLayout layout = HfLayout::kLlama;
  // What config.json means. Throws InputError naming the field for what our models lack: a field
  // that is ignored would give wrong results.
  GptConfig (*read)(const Fields& f) = nullptr;
  // The inverse, for a resolved config. It may leave out properties that the family's keys cannot
  // express: a model belongs to the first family with read(write(config)) == config. Null:
  // transformers would refuse it.
  OrderedJson (*write)(const GptConfig& config) = nullptr;
  std::vector<HfLayerName> names = {};  // of kLlama, those that differ from Llama's
  HfExpertNames experts = {};
};

extern const HfFamily kHfGpt2, kHfLlama, kHfMixtral, kHfQwen2, kHfQwen3, kHfQwen3Moe, kHfMistral,
    kHfGemma2, kHfGemma3, kHfOlmo2, kHfSmolLm3, kHfNanochat, kHfLockstep;

// The family in whose format a model is written.
const HfFamily& HfFamilyOf(const GptConfig& config);

}  // namespace lockstep::models
