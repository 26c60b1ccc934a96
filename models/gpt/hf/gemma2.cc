// Gemma 2: Gemma Team, "Gemma 2: improving open language models at a practical size" (2024).
#include <cmath>

#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {
namespace {

GptConfig Read(const Fields& f) {
  GptConfig c = ReadGemmaKeys(f, {.positions = 8192, .rope_theta = 1e4});
  c.rope = ReadRope(f, c.rope, c.block_size);
  c.attn_softcap = f.NumberOrNull("attn_logit_softcapping", 50);
  c.logit_softcap = f.NumberOrNull("final_logit_softcapping", 30);
  ReadWindows(f, f.IntegerOrNull("sliding_window", 4096), 2, &c);
  return c;
}

OrderedJson Write(const GptConfig& c) { return WriteGemmaKeys(c, "gemma2", "Gemma2ForCausalLM"); }

}  // namespace

GptConfig ReadGemmaKeys(const Fields& f, const LlamaDefaults& defaults) {
  // transformers reads only "hidden_activation"; old files also have "hidden_act": "gelu", for
  // which it also takes the tanh form.
  f.Expect("hidden_activation", "gelu_pytorch_tanh");
  f.Expect("attention_bias", false);
  f.Expect("use_bidirectional_attention", false);
  LlamaDefaults d = defaults;
  d.n_kv_head = 4;
  d.head_dim = 256;
  d.tie_embeddings = true;
  GptConfig c = ReadLlamaSizes(f, d);
  c.activation = nn::MlpActivation::kGegluTanh;
  c.norm_offset = 1;
  c.norm_place = nn::NormPlace::kSandwich;
  c.embed_scale = std::sqrt(static_cast<double>(c.n_embd));
  const double scalar = f.Number("query_pre_attn_scalar", 256);
  if (!(scalar > 0)) f.Fail("query_pre_attn_scalar", "must be positive");
  if (scalar != static_cast<double>(c.head_dim)) c.attn_scale = 1 / std::sqrt(scalar);
  return c;
}

OrderedJson WriteGemmaKeys(const GptConfig& c, const char* model_type, const char* architecture) {
  if (c.n_embd % c.n_head != 0) return nullptr;
  OrderedJson j = WriteLlamaKeys(c, model_type, architecture);
  j.erase("hidden_act");
  j["hidden_activation"] = "gelu_pytorch_tanh";
  j["attention_bias"] = false;
  j["pad_token_id"] = nullptr;
  j["query_pre_attn_scalar"] =
      c.attn_scale == 0 ? c.head_dim : std::llround(1 / (c.attn_scale * c.attn_scale));
  const auto cap = [](double value) {
    return value > 0 ? OrderedJson(value) : OrderedJson(nullptr);
  };
  j["attn_logit_softcapping"] = cap(c.attn_softcap);
  j["final_logit_softcapping"] = cap(c.logit_softcap);
  WriteWindows(c, &j);
  return j;
}

std::vector<HfLayerName> GemmaNames() {
  return {{"ln_1_out", "post_attention_layernorm"},
          {"ln_2", "pre_feedforward_layernorm"},
          {"ln_2_out", "post_feedforward_layernorm"}};
}

const HfFamily kHfGemma2 = {.model_type = "gemma2",
                            .title = "Gemma 2",
                            .read = Read,
                            .write = Write,
                            .names = GemmaNames()};

}  // namespace lockstep::models
