// SmolLM3 (Hugging Face, 2025): a Llama in which every fourth layer has no rotary embedding.
// (SmolLM and SmolLM2 have Llama's model_type.)
#include "core/io/json.h"
#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {
namespace {

// "no_rope_layers" has a 0 for each layer without. Supported is only a 0 for every n-th layer.
int64_t ReadSkip(const Fields& f, const GptConfig& c) {
  const Json& layers = f.Array("no_rope_layers");
  if (layers.empty()) return f.Integer("no_rope_layer_interval", 4);
  if (std::ssize(layers) < c.n_layer) f.Fail("no_rope_layers", "must have an entry for each layer");
  GptConfig read = c;
  for (int64_t i = 0; i < c.n_layer && read.rope_skip == 0; ++i) {
    if (layers[static_cast<size_t>(i)] == 0) read.rope_skip = i + 1;
  }
  for (int64_t i = 0; i < c.n_layer; ++i) {
    if (layers[static_cast<size_t>(i)] != (HasRope(read, i) ? 1 : 0)) {
      f.Fail("no_rope_layers", StrCat("is ", layers.dump(),
                                      "; only a 0 for every n-th layer, counted from the first, "
                                      "and 1 for the others is supported"));
    }
  }
  return read.rope_skip;
}

GptConfig Read(const Fields& f) {
  f.Expect("attention_bias", false);
  f.Expect("mlp_bias", false);
  f.Expect("use_sliding_window", false);
  GptConfig c = ReadLlamaKeys(
      f, {.positions = 32768, .rope_theta = 2e6, .n_kv_head = 4, .tie_embeddings = true});
  c.rope_skip = ReadSkip(f, c);
  for (const Json& type : f.Array("layer_types")) {  // which transformers takes before the others
    if (type != "full_attention") f.Fail("layer_types", "has other layers than \"full_attention\"");
  }
  return c;
}

OrderedJson Write(const GptConfig& c) {
  OrderedJson j = WriteLlamaKeys(c, "smollm3", "SmolLM3ForCausalLM");
  j["attention_bias"] = false;
  j["mlp_bias"] = false;
  j["pad_token_id"] = nullptr;
  j["no_rope_layer_interval"] = c.rope_skip;
  j["no_rope_layers"] = OrderedJson::array();
  for (int64_t i = 0; i < c.n_layer; ++i) j["no_rope_layers"].push_back(HasRope(c, i) ? 1 : 0);
  return j;
}

}  // namespace

const HfFamily kHfSmolLm3 = {
    .model_type = "smollm3", .title = "SmolLM3", .read = Read, .write = Write};

}  // namespace lockstep::models
