// Mistral 7B, version 0.1: Jiang et al., "Mistral 7B" (2023). Each token sees a window.
#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {
namespace {

GptConfig Read(const Fields& f) {
  GptConfig c = ReadLlamaKeys(f, {.positions = 131072, .n_kv_head = 8});
  ReadWindows(f, f.IntegerOrNull("sliding_window", 4096), 0, &c);
  if (c.window_pattern > 0) {
    f.Fail("layer_types", "has layers of both kinds, which this model_type does not have");
  }
  return c;
}

OrderedJson Write(const GptConfig& c) {
  OrderedJson j = WriteLlamaKeys(c, "mistral", "MistralForCausalLM");
  j["sliding_window"] = c.window > 0 ? OrderedJson(c.window) : OrderedJson(nullptr);
  return j;
}

}  // namespace

const HfFamily kHfMistral = {
    .model_type = "mistral", .title = "Mistral", .read = Read, .write = Write};

}  // namespace lockstep::models
