// Llama 2 and 3 (Touvron et al., 2023; Llama Team, 2024), and models of their shape: SmolLM2,
// TinyLlama, Mistral 7B from version 0.2 on.
#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {
namespace {

GptConfig Read(const Fields& f) {
  GptConfig c = ReadLlamaKeys(f);
  c.bias = f.Bool("attention_bias", false);
  if (f.Bool("mlp_bias", false) != c.bias) {  // all linear layers have biases, or none
    f.Fail("attention_bias",
           StrCat("is ",
                  c.bias ? "true, but \"mlp_bias\" is false" : "false, but \"mlp_bias\" is true",
                  "; only equal ones are supported"));
  }
  return c;
}

OrderedJson Write(const GptConfig& c) {
  if (c.n_embd % c.n_head != 0) return nullptr;
  OrderedJson j = WriteLlamaKeys(c, "llama", "LlamaForCausalLM");
  j["attention_bias"] = c.bias;
  j["mlp_bias"] = c.bias;
  return j;
}

}  // namespace

const HfFamily kHfLlama = {.model_type = "llama", .title = "Llama", .read = Read, .write = Write};

}  // namespace lockstep::models
