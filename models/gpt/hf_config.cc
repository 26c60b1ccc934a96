// config.json of Hugging Face folders.
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/gpt/hf_format.h"

namespace lockstep::models {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using nn::MlpActivation;

// The object of a config.json, with errors that name the file and the field.
struct Fields {
  const Json& j;
  std::string source;

  // A null counts as absent.
  bool Has(const char* key) const { return j.contains(key) && !j[key].is_null(); }
  [[noreturn]] void Fail(const char* key, const std::string& what) const {
    throw InputError(StrCat(source, ": \"", key, "\" ", what));
  }
  int64_t Integer(const char* key) const {
    if (!j.contains(key) || !j[key].is_number_integer()) Fail(key, "must be an integer");
    return j[key].get<int64_t>();
  }
  int64_t Integer(const char* key, int64_t otherwise) const {
    return Has(key) ? Integer(key) : otherwise;
  }
  double Number(const char* key, double otherwise) const {
    if (!Has(key)) return otherwise;
    if (!j[key].is_number()) Fail(key, "must be a number");
    return j[key].get<double>();
  }
  bool Bool(const char* key, bool otherwise) const {
    if (!Has(key)) return otherwise;
    if (!j[key].is_boolean()) Fail(key, "must be true or false");
    return j[key].get<bool>();
  }
  std::string Text(const char* key, const std::string& otherwise) const {
    if (!Has(key)) return otherwise;
    if (!j[key].is_string()) Fail(key, "must be a string");
    return j[key].get<std::string>();
  }
  // What these models do not implement must not be ignored silently.
  void Expect(const char* key, const Json& want) const {
    if (Has(key) && j[key] != want)
      Fail(key, StrCat("is ", DumpJson(j[key]), "; only ", DumpJson(want), " is supported"));
  }
  // An empty object if absent.
  Fields Object(const char* key) const {
    static const Json empty = Json::object();
    if (!Has(key)) return {empty, source};
    if (!j[key].is_object()) Fail(key, "must be an object");
    return {j[key], StrCat(source, ": \"", key, "\"")};
  }
};

// ---- GPT-2. ----

struct ActivationWord {
  MlpActivation activation;
  const char* word;
};
// The first word of an activation is the one to write.
constexpr ActivationWord kGpt2Activations[] = {
    {MlpActivation::kGelu, "gelu_new"},  {MlpActivation::kGelu, "gelu_pytorch_tanh"},
    {MlpActivation::kGeluExact, "gelu"}, {MlpActivation::kRelu, "relu"},
    {MlpActivation::kSilu, "silu"},      {MlpActivation::kSilu, "swish"}};

MlpActivation Gpt2Activation(const Fields& f) {
  const std::string word = f.Text("activation_function", "gelu_new");
  std::string all;
  for (const ActivationWord& a : kGpt2Activations) {
    if (word == a.word) return a.activation;
    all += StrCat(all.empty() ? "" : ", ", a.word);
  }
  f.Fail("activation_function", StrCat("is \"", word, "\"; supported are ", all));
}

OrderedJson Gpt2Config(const GptConfig& c) {
  OrderedJson j;
  j["architectures"] = {"GPT2LMHeadModel"};
  j["model_type"] = "gpt2";
  j["vocab_size"] = c.vocab_size;
  j["n_positions"] = c.block_size;
  j["n_ctx"] = c.block_size;
  j["n_embd"] = c.n_embd;
  j["n_layer"] = c.n_layer;
  j["n_head"] = c.n_head;
  j["n_inner"] = c.n_inner == 4 * c.n_embd ? OrderedJson(nullptr) : OrderedJson(c.n_inner);
  for (const ActivationWord& a : kGpt2Activations) {
    if (a.activation != c.activation) continue;
    j["activation_function"] = a.word;
    break;
  }
  j["layer_norm_epsilon"] = c.norm_eps;
  j["initializer_range"] = c.init_std;
  j["resid_pdrop"] = c.dropout;
  j["embd_pdrop"] = c.dropout;
  j["attn_pdrop"] = c.dropout;
  j["tie_word_embeddings"] = c.tie_embeddings;
  // The defaults (50256) would lie outside small vocabularies.
  const bool gpt2_vocabulary = c.vocab_size >= 50257;
  j["bos_token_id"] = gpt2_vocabulary ? OrderedJson(50256) : OrderedJson(nullptr);
  j["eos_token_id"] = gpt2_vocabulary ? OrderedJson(50256) : OrderedJson(nullptr);
  j["lockstep"] = {{"bias", c.bias}};
  return j;
}

GptConfig FromGpt2(const Fields& f) {
  f.Expect("scale_attn_weights", true);
  f.Expect("scale_attn_by_inverse_layer_idx", false);
  f.Expect("add_cross_attention", false);
  GptConfig c;
  c.vocab_size = f.Integer("vocab_size");
  c.block_size = f.Integer(f.j.contains("n_positions") ? "n_positions" : "n_ctx");
  c.n_embd = f.Integer("n_embd");
  c.n_layer = f.Integer("n_layer");
  c.n_head = f.Integer("n_head");
  c.n_inner = f.Integer("n_inner", 0);
  c.activation = Gpt2Activation(f);
  c.norm_eps = f.Number("layer_norm_epsilon", 1e-5);
  c.init_std = f.Number("initializer_range", 0.02);
  c.dropout = f.Number("resid_pdrop", 0);
  c.tie_embeddings = f.Bool("tie_word_embeddings", true);
  c.bias = f.Object("lockstep").Bool("bias", true);
  return c;
}

// ---- Rotary embedding: "rope_theta" and "rope_scaling", or since transformers 5 both within
// "rope_parameters". ----

OrderedJson RopeScaling(const RotaryOptions& rope) {
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

RotaryOptions FromRope(const Fields& f, RotaryOptions rope = {}) {
  const Fields scaling = f.Object(f.Has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  rope.theta = scaling.Number("rope_theta", f.Number("rope_theta", rope.theta));
  const std::string type = scaling.Text("rope_type", scaling.Text("type", "default"));
  if (type == "default") return rope;
  if (type != "linear" && type != "llama3") {
    scaling.Fail("rope_type", StrCat("is \"", type, "\"; supported are default, linear, llama3"));
  }
  rope.scaling = ParseRopeScaling(type);
  rope.factor = scaling.Number("factor", rope.factor);
  rope.low = scaling.Number("low_freq_factor", rope.low);
  rope.high = scaling.Number("high_freq_factor", rope.high);
  rope.original_length = scaling.Integer("original_max_position_embeddings", rope.original_length);
  return rope;
}

// ---- Llama. ----

OrderedJson LlamaConfig(const GptConfig& c) {
  OrderedJson j;
  j["architectures"] = {"LlamaForCausalLM"};
  j["model_type"] = "llama";
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
  j["rope_scaling"] = RopeScaling(c.rope);
  j["attention_bias"] = c.bias;
  j["mlp_bias"] = c.bias;
  j["attention_dropout"] = c.dropout;
  j["tie_word_embeddings"] = c.tie_embeddings;
  // The defaults (1 and 2) could be ordinary tokens of our vocabularies.
  j["bos_token_id"] = nullptr;
  j["eos_token_id"] = nullptr;
  return j;
}

// What transformers takes where a config.json leaves it out.
struct LlamaDefaults {
  int64_t positions = 2048;
  double eps = 1e-6;
  double rope_theta = 1e4;
  std::optional<int64_t> n_kv_head = {};  // none: as many as heads
  int64_t head_dim = 0;                   // 0: n_embd / n_head
};

GptConfig FromLlama(const Fields& f, const LlamaDefaults& defaults = {}) {
  f.Expect("hidden_act", "silu");
  GptConfig c;
  c.norm = NormKind::kRmsNorm;
  c.activation = MlpActivation::kSwiGlu;
  c.position = Position::kRope;
  c.vocab_size = f.Integer("vocab_size");
  c.block_size = f.Integer("max_position_embeddings", defaults.positions);
  c.n_embd = f.Integer("hidden_size");
  c.n_inner = f.Integer("intermediate_size");
  c.n_layer = f.Integer("num_hidden_layers");
  c.n_head = f.Integer("num_attention_heads");
  // A null asks for as many as heads.
  const bool left_out = !f.j.contains("num_key_value_heads");
  c.n_kv_head =
      f.Integer("num_key_value_heads", left_out ? defaults.n_kv_head.value_or(c.n_head) : c.n_head);
  // A null asks for n_embd / n_head.
  c.head_dim = f.Integer("head_dim", f.j.contains("head_dim") ? 0 : defaults.head_dim);
  c.norm_eps = f.Number("rms_norm_eps", defaults.eps);
  c.init_std = f.Number("initializer_range", 0.02);
  c.rope = FromRope(f, {.theta = defaults.rope_theta});
  c.bias = f.Bool("attention_bias", false);
  f.Expect("mlp_bias", c.bias);  // all linear layers have biases, or none
  c.dropout = f.Number("attention_dropout", 0);
  c.tie_embeddings = f.Bool("tie_word_embeddings", false);
  return c;
}

// ---- Mixtral. ----

OrderedJson MixtralConfig(const GptConfig& c) {
  OrderedJson j = LlamaConfig(c);
  j["architectures"] = {"MixtralForCausalLM"};
  j["model_type"] = "mixtral";
  j["intermediate_size"] = c.mixture.n_inner;
  j.erase("attention_bias");
  j.erase("mlp_bias");
  j["num_local_experts"] = c.mixture.n_expert;
  j["num_experts_per_tok"] = c.mixture.n_expert_used;
  // The loss of transformers is another function, of all layers together.
  j["router_aux_loss_coef"] = c.mixture.balance_loss;
  j["router_jitter_noise"] = 0.0;
  j["output_router_logits"] = false;
  j["sliding_window"] = nullptr;
  j["lockstep"] = {{"z_loss", c.mixture.z_loss}};
  return j;
}

GptConfig FromMixtral(const Fields& f) {
  f.Expect("router_jitter_noise", 0.0);
  GptConfig c = FromLlama(f, {.positions = 131072, .eps = 1e-5, .rope_theta = 1e6, .n_kv_head = 8});
  if (f.Has("sliding_window") && f.Integer("sliding_window") < c.block_size) {
    f.Fail("sliding_window",
           "is shorter than the context; only attention to all tokens is supported");
  }
  c.mixture.n_expert = f.Integer("num_local_experts", 8);
  c.mixture.n_expert_used = f.Integer("num_experts_per_tok", 2);
  c.mixture.n_inner = c.n_inner;
  c.mixture.balance_loss = f.Number("router_aux_loss_coef", 0.001);
  c.mixture.z_loss = f.Object("lockstep").Number("z_loss", 0);
  return c;
}

// ---- Qwen3, without experts and with them (Qwen3-MoE). ----

OrderedJson Qwen3Config(const GptConfig& c) {
  OrderedJson j = LlamaConfig(c);
  j["architectures"] = {"Qwen3ForCausalLM"};
  j["model_type"] = "qwen3";
  j.erase("mlp_bias");
  j["use_sliding_window"] = false;
  return j;
}

OrderedJson Qwen3MoeConfig(const GptConfig& c) {
  OrderedJson j = Qwen3Config(c);
  j["architectures"] = {"Qwen3MoeForCausalLM"};
  j["model_type"] = "qwen3_moe";
  j["moe_intermediate_size"] = c.mixture.n_inner;
  j["num_experts"] = c.mixture.n_expert;
  j["num_experts_per_tok"] = c.mixture.n_expert_used;
  j["norm_topk_prob"] = c.mixture.router.normalise;
  j["decoder_sparse_step"] = 1;
  j["mlp_only_layers"] = OrderedJson::array();
  for (int64_t i = 0; i < c.n_dense; ++i) j["mlp_only_layers"].push_back(i);
  // The loss of transformers is another function, of all layers together.
  j["router_aux_loss_coef"] = c.mixture.balance_loss;
  j["output_router_logits"] = false;
  j["lockstep"] = {{"z_loss", c.mixture.z_loss}};
  return j;
}

GptConfig FromQwen3(const Fields& f, const LlamaDefaults& defaults = {
                                         .positions = 32768, .n_kv_head = 32, .head_dim = 128}) {
  f.Expect("attention_bias", false);  // the MLPs have none
  f.Expect("use_sliding_window", false);
  if (f.Has("layer_types")) {
    for (const Json& type : f.j["layer_types"]) {
      if (type != "full_attention") {
        f.Fail("layer_types",
               StrCat("has ", DumpJson(type), "; only \"full_attention\" is supported"));
      }
    }
  }
  GptConfig c = FromLlama(f, defaults);
  c.qk_norm = true;
  return c;
}

// How many of the first layers have an MLP. That other layers have one is refused.
int64_t DenseLayers(const Fields& f) {
  f.Expect("decoder_sparse_step", 1);
  if (!f.Has("mlp_only_layers")) return 0;
  const Json& layers = f.j["mlp_only_layers"];
  Json first = Json::array();
  while (first.size() < layers.size()) first.push_back(first.size());
  if (layers != first) {
    f.Fail("mlp_only_layers", StrCat("is ", DumpJson(layers), "; only the first layers, as in ",
                                     DumpJson(first), ", are supported"));
  }
  return static_cast<int64_t>(layers.size());
}

GptConfig FromQwen3Moe(const Fields& f) {
  GptConfig c = FromQwen3(f, {.positions = 32768, .n_kv_head = 4});
  nn::MixtureOptions& m = c.mixture;
  // transformers 5 writes Mixtral's name.
  m.n_expert = f.Integer(f.Has("num_local_experts") ? "num_local_experts" : "num_experts", 128);
  m.n_expert_used = f.Integer("num_experts_per_tok", 8);
  m.n_inner = f.Integer("moe_intermediate_size", 768);
  m.router.normalise = f.Bool("norm_topk_prob", false);
  m.balance_loss = f.Number("router_aux_loss_coef", 0.001);
  m.z_loss = f.Object("lockstep").Number("z_loss", 0);
  c.n_dense = DenseLayers(f);
  return c;
}

// ---- Lockstep's own. ----

OrderedJson MixtureConfig(const GptConfig& c) {
  const nn::MixtureOptions& m = c.mixture;
  return {{"n_expert", m.n_expert},         {"n_expert_used", m.n_expert_used},
          {"n_inner", m.n_inner},           {"n_shared", m.n_shared},
          {"shared_gate", m.shared_gate},   {"n_dense", c.n_dense},
          {"router", RouterName(m.router)}, {"router_scale", m.router.scale},
          {"balance_loss", m.balance_loss}, {"z_loss", m.z_loss},
          {"bias_rate", m.bias_rate}};
}

nn::MixtureOptions FromMixture(const Fields& f) {
  nn::MixtureOptions m;
  m.n_expert = f.Integer("n_expert");
  m.n_expert_used = f.Integer("n_expert_used");
  m.n_inner = f.Integer("n_inner");
  m.n_shared = f.Integer("n_shared", 0);
  m.shared_gate = f.Bool("shared_gate", false);
  m.router = ParseRouter(f.Text("router", ""));
  m.router.scale = f.Number("router_scale", 1);
  m.balance_loss = f.Number("balance_loss", 0);
  m.z_loss = f.Number("z_loss", 0);
  m.bias_rate = f.Number("bias_rate", 0);
  return m;
}

OrderedJson LockstepConfig(const GptConfig& c) {
  OrderedJson j;
  j["model_type"] = "lockstep";
  j["vocab_size"] = c.vocab_size;
  j["block_size"] = c.block_size;
  j["n_layer"] = c.n_layer;
  j["n_head"] = c.n_head;
  j["n_kv_head"] = c.n_kv_head;
  j["head_dim"] = c.head_dim;
  j["qk_norm"] = c.qk_norm;
  j["n_embd"] = c.n_embd;
  j["n_inner"] = c.n_inner;
  j["dropout"] = c.dropout;
  j["bias"] = c.bias;
  j["tie_embeddings"] = c.tie_embeddings;
  j["norm"] = Name(c.norm);
  j["norm_eps"] = c.norm_eps;
  j["init_std"] = c.init_std;
  j["activation"] = Name(c.activation);
  j["position"] = Name(c.position);
  if (c.position == Position::kRope) {
    j["rope_theta"] = c.rope.theta;
    j["rope_scaling"] = RopeScaling(c.rope);
  }
  if (c.mixture.n_expert > 0) j["mixture"] = MixtureConfig(c);
  return j;
}

GptConfig FromLockstep(const Fields& f) {
  GptConfig c;
  c.vocab_size = f.Integer("vocab_size");
  c.block_size = f.Integer("block_size");
  c.n_layer = f.Integer("n_layer");
  c.n_head = f.Integer("n_head");
  c.n_kv_head = f.Integer("n_kv_head");
  c.head_dim = f.Integer("head_dim", 0);
  c.qk_norm = f.Bool("qk_norm", false);
  c.n_embd = f.Integer("n_embd");
  c.n_inner = f.Integer("n_inner");
  c.dropout = f.Number("dropout", 0);
  c.bias = f.Bool("bias", c.bias);
  c.tie_embeddings = f.Bool("tie_embeddings", c.tie_embeddings);
  c.norm = ParseNorm(f.Text("norm", ""));
  c.norm_eps = f.Number("norm_eps", c.norm_eps);
  c.init_std = f.Number("init_std", c.init_std);
  c.activation = ParseActivation(f.Text("activation", ""));
  c.position = ParsePosition(f.Text("position", ""));
  if (c.position == Position::kRope) c.rope = FromRope(f);
  if (f.Has("mixture")) {
    c.mixture = FromMixture(f.Object("mixture"));
    c.n_dense = f.Object("mixture").Integer("n_dense", 0);
  }
  return c;
}

GptConfig FromFields(const Fields& f) {
  const std::string type = f.Text("model_type", "gpt2");
  if (type == "gpt2") return FromGpt2(f);
  if (type == "llama") return FromLlama(f);
  if (type == "mixtral") return FromMixtral(f);
  if (type == "qwen3") return FromQwen3(f);
  if (type == "qwen3_moe") return FromQwen3Moe(f);
  if (type == "lockstep") return FromLockstep(f);
  f.Fail("model_type",
         StrCat("is \"", type,
                "\"; supported are gpt2, llama, mixtral, qwen3, qwen3_moe and lockstep"));
}

}  // namespace

HfFormat HfFormatOf(const GptConfig& config) {
  const GptConfig c = Resolved(config);
  const nn::MixtureOptions& m = c.mixture;
  const bool llama = c.norm == NormKind::kRmsNorm && c.position == Position::kRope &&
                     c.activation == MlpActivation::kSwiGlu;
  if (m.n_expert > 0) {
    RouterOptions router = m.router;
    router.normalise = true;
    if (!llama || c.bias || m.n_shared > 0 || router != RouterOptions()) return HfFormat::kLockstep;
    if (c.qk_norm) return HfFormat::kQwen3Moe;
    const bool mixtral = m.router.normalise && c.n_dense == 0 && m.n_inner == c.n_inner;
    return mixtral ? HfFormat::kMixtral : HfFormat::kLockstep;
  }
  if (llama && c.qk_norm) return c.bias ? HfFormat::kLockstep : HfFormat::kQwen3;
  if (llama && c.n_embd % c.n_head == 0) return HfFormat::kLlama;  // transformers wants that
  const bool gpt2 = c.norm == NormKind::kLayerNorm && c.position == Position::kLearned &&
                    c.activation != MlpActivation::kSwiGlu && c.n_kv_head == c.n_head &&
                    c.n_head * c.head_dim == c.n_embd && !c.qk_norm;
  return gpt2 ? HfFormat::kGpt2 : HfFormat::kLockstep;
}

std::string ToHfConfig(const GptConfig& config, DType dtype) {
  const GptConfig c = Resolved(config);
  OrderedJson j = [&] {
    switch (HfFormatOf(c)) {
      case HfFormat::kGpt2:
        return Gpt2Config(c);
      case HfFormat::kLlama:
        return LlamaConfig(c);
      case HfFormat::kMixtral:
        return MixtralConfig(c);
      case HfFormat::kQwen3:
        return Qwen3Config(c);
      case HfFormat::kQwen3Moe:
        return Qwen3MoeConfig(c);
      case HfFormat::kLockstep:
        break;
    }
    return LockstepConfig(c);
  }();
  j["torch_dtype"] = dtype == DType::kBF16  ? "bfloat16"
                     : dtype == DType::kF16 ? "float16"
                                            : "float32";
  return DumpJson(j, 2) + "\n";
}

GptConfig FromHfConfig(const std::string& text, const std::string& source) {
  const Json j = ParseJson(text, source);
  if (!j.is_object()) throw InputError(StrCat(source, ": not a JSON object"));
  try {
    const GptConfig c = FromFields({j, source});
    Validate(c);
    return Resolved(c);
  } catch (const ArgumentError& e) {
    throw InputError(StrCat(source, ": ", e.what()));
  }
}

GptConfig ReadHfConfig(const std::string& path) {
  const std::string file = path + "/config.json";
  return FromHfConfig(ReadFile(file), file);
}

}  // namespace lockstep::models
