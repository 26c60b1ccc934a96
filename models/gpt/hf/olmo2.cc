// OLMo 2: OLMo Team, "2 OLMo 2 Furious" (2025). Norms come after each branch, and those of queries
// and keys are as wide as all heads together.
#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {
namespace {

GptConfig Read(const Fields& f) {
  f.Expect("attention_bias", false);  // the MLPs have none
  GptConfig c = ReadLlamaKeys(f, {.eps = 1e-5});
  c.qk_norm = nn::QkNorm::kFull;
  c.norm_place = nn::NormPlace::kPost;
  return c;
}

OrderedJson Write(const GptConfig& c) {
  OrderedJson j = WriteLlamaKeys(c, "olmo2", "Olmo2ForCausalLM");
  j["attention_bias"] = false;
  j["pad_token_id"] = nullptr;
  return j;
}

}  // namespace

const HfFamily kHfOlmo2 = {.model_type = "olmo2",
                           .title = "OLMo 2",
                           .read = Read,
                           .write = Write,
                           .names = {{"ln_1_out", "post_attention_layernorm"},
                                     {"ln_2_out", "post_feedforward_layernorm"}}};

}  // namespace lockstep::models
