// Qwen 2 and 2.5: Qwen Team, "Qwen2 technical report" (2024). Queries, keys and values have biases,
// which no key of config.json says.
#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {
namespace {

GptConfig Read(const Fields& f) {
  GptConfig c = ReadLlamaKeys(f, {.positions = 32768, .n_kv_head = 32});
  c.qkv_bias = true;
  ReadQwenWindows(f, &c);
  return c;
}

OrderedJson Write(const GptConfig& c) {
  OrderedJson j = WriteLlamaKeys(c, "qwen2", "Qwen2ForCausalLM");
  WriteQwenWindows(c, &j);
  return j;
}

}  // namespace

void ReadQwenWindows(const Fields& f, GptConfig* c) {
  const bool uses = f.Bool("use_sliding_window", false);
  const int64_t window = uses ? f.IntegerOrNull("sliding_window", 4096) : 0;
  ReadWindows(f, window, 0, c);
  if (window == 0 || f.Has("layer_types")) return;
  const int64_t first = f.Integer("max_window_layers", 28);
  if (first >= c->n_layer) {
    c->window = 0;
  } else if (first > 0) {
    f.Fail("max_window_layers", StrCat("is ", first, " of ", c->n_layer,
                                       " layers; only 0, a window in all layers, is supported"));
  }
}

void WriteQwenWindows(const GptConfig& c, OrderedJson* j) {
  (*j)["use_sliding_window"] = c.window > 0;
  if (c.window == 0) return;
  (*j)["max_window_layers"] = 0;
  WriteWindows(c, j);
}

const HfFamily kHfQwen2 = {.model_type = "qwen2", .title = "Qwen2", .read = Read, .write = Write};

}  // namespace lockstep::models
