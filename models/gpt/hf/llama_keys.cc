#include "models/gpt/hf/llama_keys.h"

#include "core/io/json.h"

namespace lockstep::models {

OrderedJson WriteRopeScaling(const RotaryOptions& rope) {
  if (rope.scaling == RotaryScaling::kNone) return nullptr;
  OrderedJson j;
  j["rope_type"] = Name(rope.scaling);
  j["factor"] = rope.factor;
  if (rope.scaling == RotaryScaling::kLlama3) {
    j["low_freq_factor"] = rope.low;
    j["high_freq_factor"] = rope.high;
    j["original_max_position_embeddings"] = rope.original_length;
  }
  return j;
}

RotaryOptions ReadRopeObject(const Fields& f, RotaryOptions rope, int64_t positions) {
  f.Expect("partial_rotary_factor", 1.0);
  rope.theta = f.Number("rope_theta", rope.theta);
  const std::string type = f.Text("rope_type", f.Text("type", "default"));
  if (type == "default") return rope;
  if (type != "linear" && type != "llama3") {
    f.Fail("rope_type", StrCat("is \"", type, "\"; supported are default, linear, llama3"));
  }
  const auto required = [&](const char* key) {
    if (!f.Has(key)) f.Fail(key, StrCat("is missing, which the rope_type \"", type, "\" needs"));
    return f.Number(key, 0);
  };
  rope.scaling = ParseRopeScaling(type);
  rope.factor = required("factor");
  if (type == "linear") return rope;
  rope.low = required("low_freq_factor");
  rope.high = required("high_freq_factor");
  rope.original_length = f.Integer("original_max_position_embeddings", positions);
  return rope;
}

RotaryOptions ReadRope(const Fields& f, const RotaryOptions& rope, int64_t positions) {
  f.Expect("partial_rotary_factor", 1.0);
  RotaryOptions outer = rope;
  outer.theta = f.Number("rope_theta", rope.theta);
  // Where a folder has both, transformers takes the older name, and a length beside it (Phi-3's
  // place) before that within.
  const bool old = f.Has("rope_scaling") && !f.Object("rope_scaling").j.empty();
  RotaryOptions read =
      ReadRopeObject(f.Object(old ? "rope_scaling" : "rope_parameters"), outer, positions);
  if (read.scaling == RotaryScaling::kLlama3) {
    read.original_length = f.Integer("original_max_position_embeddings", read.original_length);
  }
  return read;
}

GptConfig ReadLlamaSizes(const Fields& f, const LlamaDefaults& defaults) {
  GptConfig c;
  c.bias = false;
  c.norm = NormKind::kRmsNorm;
  c.activation = nn::MlpActivation::kSwiGlu;
  c.position = Position::kRope;
  c.vocab_size = f.Integer("vocab_size");
  c.block_size = f.Integer("max_position_embeddings", defaults.positions);
  c.n_embd = f.Integer("hidden_size");
  c.n_inner = f.Integer("intermediate_size");
  c.n_layer = f.Integer("num_hidden_layers");
  c.n_head = f.Integer("num_attention_heads");
  // A null means as many as heads.
  const bool left_out = !f.j.contains("num_key_value_heads");
  c.n_kv_head =
      f.Integer("num_key_value_heads", left_out ? defaults.n_kv_head.value_or(c.n_head) : c.n_head);
  // A null means n_embd / n_head.
  c.head_dim = f.IntegerOrNull("head_dim", defaults.head_dim);
  c.norm_eps = f.Number("rms_norm_eps", defaults.eps);
  c.init_std = f.Number("initializer_range", 0.02);
  c.dropout = f.Number("attention_dropout", 0);
  c.tie_embeddings = f.Bool("tie_word_embeddings", defaults.tie_embeddings);
  c.rope.theta = defaults.rope_theta;
  return c;
}

GptConfig ReadLlamaKeys(const Fields& f, const LlamaDefaults& defaults) {
  f.Expect("hidden_act", "silu");
  GptConfig c = ReadLlamaSizes(f, defaults);
  c.rope = ReadRope(f, c.rope, c.block_size);
  return c;
}

OrderedJson WriteLlamaKeys(const GptConfig& c, const char* model_type, const char* architecture) {
  OrderedJson j;
  j["architectures"] = {architecture};
  j["model_type"] = model_type;
  j["vocab_size"] = c.vocab_size;
  j["max_position_embeddings"] = c.block_size;
  j["hidden_size"] = c.n_embd;
  j["intermediate_size"] = c.n_inner;
  j["num_hidden_layers"] = c.n_layer;
  j["num_attention_heads"] = c.n_head;
  j["num_key_value_heads"] = c.n_kv_head;
  j["head_dim"] = c.head_dim;
  j["hidden_act"] = "silu";
  j["rms_norm_eps"] = c.norm_eps;
  j["initializer_range"] = c.init_std;
  j["rope_theta"] = c.rope.theta;
  j["rope_scaling"] = WriteRopeScaling(c.rope);
  j["attention_dropout"] = c.dropout;
  j["tie_word_embeddings"] = c.tie_embeddings;
  // The defaults (1 and 2) could be ordinary tokens of our vocabularies.
  j["bos_token_id"] = nullptr;
  j["eos_token_id"] = nullptr;
  return j;
}

void ReadWindows(const Fields& f, int64_t window, int64_t pattern, GptConfig* c) {
  c->window = window;
  c->window_pattern = window > 0 ? pattern : 0;
  const Json& types = f.Array("layer_types");
  if (types.empty()) return;
  if (std::ssize(types) < c->n_layer) f.Fail("layer_types", "must have an entry for each layer");
  int64_t full = 0, first_full = c->n_layer;
  for (int64_t i = 0; i < c->n_layer; ++i) {
    const Json& type = types[static_cast<size_t>(i)];
    if (type != "full_attention" && type != "sliding_attention") {
      f.Fail("layer_types",
             StrCat("has ", type.dump(),
                    "; only \"full_attention\" and \"sliding_attention\" are supported"));
    }
    if (type == "full_attention" && full++ == 0) first_full = i;
  }
  if (full < c->n_layer && window == 0) {
    f.Fail("layer_types", "has \"sliding_attention\", but \"sliding_window\" gives no window");
  }
  c->window = full < c->n_layer ? window : 0;
  c->window_pattern = full == 0 || c->window == 0 ? 0 : first_full + 1;
  for (int64_t i = 0; i < c->n_layer; ++i) {
    if (HasWindow(*c, i) != (types[static_cast<size_t>(i)] == "sliding_attention")) {
      f.Fail("layer_types", StrCat("is ", types.dump(),
                                   "; supported is only \"full_attention\" in every n-th layer, "
                                   "counted from the first"));
    }
  }
}

void WriteWindows(const GptConfig& c, OrderedJson* j) {
  (*j)["sliding_window"] = c.window > 0 ? OrderedJson(c.window) : OrderedJson(nullptr);
  OrderedJson types = OrderedJson::array();
  for (int64_t i = 0; i < c.n_layer; ++i) {
    types.push_back(HasWindow(c, i) ? "sliding_attention" : "full_attention");
  }
  (*j)["layer_types"] = types;
}

}  // namespace lockstep::models
