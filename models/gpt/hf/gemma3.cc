// Gemma 3's language models: Gemma Team, "Gemma 3 technical report" (2025).
#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {
namespace {

constexpr double kLocalTheta = 1e4;

// Since transformers 5 "rope_parameters" has an object for each kind of layer; what "rope_scaling"
// says of layers without a window is put into theirs.
void ReadRopes(const Fields& f, GptConfig* c) {
  const Fields both = f.Object("rope_parameters"), sliding = both.Object("sliding_attention");
  Json full = both.Object("full_attention").j;
  const Fields scaling = f.Object("rope_scaling");
  if (scaling.Has("type") && !scaling.Has("rope_type") && !full.contains("rope_type")) {
    scaling.Fail("type", "is not read by all versions of transformers: call it \"rope_type\"");
  }
  full.update(scaling.j);
  const bool scaled = f.Has("rope_scaling");
  const Fields global = {full, scaled ? scaling.source : both.source};
  RotaryOptions rope = {.theta = f.Number("rope_theta", c->rope.theta)};
  c->rope = ReadRopeObject(global, rope, c->block_size);
  rope.theta = f.Number("rope_local_base_freq", kLocalTheta);
  const RotaryOptions of_window = ReadRopeObject(sliding, rope, c->block_size);
  if (of_window.scaling != RotaryScaling::kNone) {
    sliding.Fail("rope_type",
                 "is not \"default\", the only type that is supported in layers with a window");
  }
  const double local = of_window.theta;
  const bool apart = local != c->rope.theta || c->rope.scaling != RotaryScaling::kNone;
  c->rope_local_theta = c->window > 0 && apart ? local : 0;
}

GptConfig Read(const Fields& f) {
  GptConfig c = ReadGemmaKeys(f, {.positions = 131072, .rope_theta = 1e6});
  c.qk_norm = nn::QkNorm::kHead;
  f.Expect("attn_logit_softcapping", nullptr);  // which transformers ignores here
  c.logit_softcap = f.NumberOrNull("final_logit_softcapping", 0);
  ReadWindows(f, f.IntegerOrNull("sliding_window", 4096), f.Integer("sliding_window_pattern", 6),
              &c);
  ReadRopes(f, &c);
  return c;
}

OrderedJson Write(const GptConfig& c) {
  OrderedJson j = WriteGemmaKeys(c, "gemma3_text", "Gemma3ForCausalLM");
  if (j.is_null() || c.attn_softcap != 0) return nullptr;
  j["rope_local_base_freq"] = c.rope_local_theta > 0 ? c.rope_local_theta : c.rope.theta;
  j["use_bidirectional_attention"] = false;
  return j;
}

}  // namespace

const HfFamily kHfGemma3 = {.model_type = "gemma3_text",
                            .title = "Gemma 3",
                            .read = Read,
                            .write = Write,
                            .names = GemmaNames()};

}  // namespace lockstep::models
