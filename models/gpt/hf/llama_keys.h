// The keys of config.json that Llama's successors share.
#pragma once

#include <optional>

#include "models/gpt/hf/family.h"

namespace lockstep::models {

// The values that transformers uses if a config.json leaves them out.
struct LlamaDefaults {
  int64_t positions = 2048;
  double eps = 1e-6;
  double rope_theta = 1e4;
  std::optional<int64_t> n_kv_head = {};  // none: as many as heads
  int64_t head_dim = 0;                   // 0: n_embd / n_head
  bool tie_embeddings = false;
};

// A Llama without biases: sizes, rotary embedding, RMS norms, SwiGLU. "hidden_act" must be "silu".
GptConfig ReadLlamaKeys(const Fields& f, const LlamaDefaults& defaults = {});
// The same, except the activation, whose key differs.
GptConfig ReadLlamaSizes(const Fields& f, const LlamaDefaults& defaults);
OrderedJson WriteLlamaKeys(const GptConfig& c, const char* model_type, const char* architecture);

// Rotary embedding: "rope_theta" and "rope_scaling", or since transformers 5 both within
// "rope_parameters". If the theta is absent, it is that of `rope`; if the original length is, it is
// `positions`.
RotaryOptions ReadRope(const Fields& f, const RotaryOptions& rope, int64_t positions);
// The scaling of an object that has "rope_type" and its numbers, and perhaps "rope_theta".
RotaryOptions ReadRopeObject(const Fields& f, RotaryOptions rope, int64_t positions);
OrderedJson WriteRopeScaling(const RotaryOptions& rope);

// Reads "layer_types" if there is one; otherwise all layers have the window except every
// `pattern`-th (0: all have it).
void ReadWindows(const Fields& f, int64_t window, int64_t pattern, GptConfig* c);
// "sliding_window", null for none, and "layer_types".
void WriteWindows(const GptConfig& c, OrderedJson* j);

// The windows of Qwen 2 and 3: only with "use_sliding_window", and then only in layers from
// "max_window_layers" on.
void ReadQwenWindows(const Fields& f, GptConfig* c);
void WriteQwenWindows(const GptConfig& c, OrderedJson* j);

// What Gemma 2 and 3 have in common.
GptConfig ReadGemmaKeys(const Fields& f, const LlamaDefaults& defaults);
// Null where transformers would refuse the sizes.
OrderedJson WriteGemmaKeys(const GptConfig& c, const char* model_type, const char* architecture);
std::vector<HfLayerName> GemmaNames();

}  // namespace lockstep::models
