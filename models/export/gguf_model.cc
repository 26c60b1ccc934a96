#include "models/export/gguf_model.h"

#include <cmath>
#include <map>
#include <string_view>

#include "models/gpt/hf/hf_format.h"

namespace lockstep::models {
namespace {

// An architecture of llama.cpp, for a family of Hugging Face's.
struct Architecture {
  std::string_view model_type;      // of config.json
  std::string_view name;            // general.architecture
  bool neighbouring_pairs = false;  // rotates (2i, 2i + 1), not (i, i + D/2)
  bool square = false;              // heads * head_dim must be the width
  bool windows = false;             // has layers with a window, by attention.sliding_window_pattern
  bool own_head = false;            // a tied head must be written, too
  int64_t large_layers = 0;  // a model with this many layers scales attention by width / heads
};

constexpr Architecture kArchitectures[] = {
    {.model_type = "gpt2", .name = "gpt2", .square = true},
    {.model_type = "llama", .name = "llama", .neighbouring_pairs = true},
    {.model_type = "mistral", .name = "llama", .neighbouring_pairs = true},
    {.model_type = "mixtral", .name = "llama", .neighbouring_pairs = true},
    {.model_type = "smollm3", .name = "smollm3", .neighbouring_pairs = true},
    {.model_type = "qwen2", .name = "qwen2", .square = true},
    {.model_type = "qwen3", .name = "qwen3"},
    {.model_type = "qwen3_moe", .name = "qwen3moe"},
    {.model_type = "gemma2", .name = "gemma2", .windows = true, .large_layers = 46},
    {.model_type = "gemma3_text", .name = "gemma3", .windows = true, .large_layers = 62},
    {.model_type = "olmo2", .name = "olmo2", .square = true, .own_head = true},
};

// A layer's name in config.json's family, and in GGUF.
struct LayerName {
  std::string_view theirs, gguf;
  bool is_f32 = false;
};

constexpr LayerName kNames[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.o_proj", "attn_output"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    // Experts: Mixtral, Qwen3-MoE.
    {"block_sparse_moe.gate", "ffn_gate_inp", /*is_f32=*/true},
    {"block_sparse_moe.experts.w1", "ffn_gate_exps"},
    {"block_sparse_moe.experts.w3", "ffn_up_exps"},
    {"block_sparse_moe.experts.w2", "ffn_down_exps"},
    {"mlp.gate", "ffn_gate_inp", /*is_f32=*/true},
    {"mlp.experts.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.up_proj", "ffn_up_exps"},
    {"mlp.experts.down_proj", "ffn_down_exps"},
    // GPT-2.
    {"wte", "token_embd"},
    {"wpe", "position_embd", /*is_f32=*/true},
    {"ln_f", "output_norm"},
    {"ln_1", "attn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"},
    {"ln_2", "ffn_norm"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
};

LayerName NameOf(const GptConfig& c, const std::string& layer) {
  // Llama's is the norm before the MLP, that of others comes after attention.
  if (layer == "post_attention_layernorm") {
    return {layer, c.norm_place == nn::NormPlace::kPre ? "ffn_norm" : "post_attention_norm"};
  }
  for (const LayerName& name : kNames) {
    if (name.theirs == layer) return name;
  }
  throw ArgumentError(StrCat("GGUF has no name for the layer ", layer));
}

[[noreturn]] void Refuse(const Architecture& a, std::string_view field, const std::string& why) {
  throw InputError(StrCat("config.json: \"", field, "\" cannot be written to GGUF: llama.cpp's ",
                          a.name, " ", why, ". Export the model with --format=hf instead"));
}

const Architecture& ArchitectureOf(const GptConfig& c) {
  const std::string type = HfModelType(c);
  std::string all;
  for (const Architecture& a : kArchitectures) {
    if (a.model_type == type) return a;
    all += StrCat(all.empty() ? "" : ", ", a.model_type);
  }
  throw InputError(StrCat("config.json: \"model_type\" is \"", type,
                          "\", a combination of options that llama.cpp does not have; it has ", all,
                          ". Export the model with --format=hf instead"));
}

// What would be ignored, or is fixed there.
void CheckSaid(const Architecture& a, const GptConfig& c) {
  const double head = static_cast<double>(c.head_dim);
  const double width =
      static_cast<double>(c.n_layer == a.large_layers ? c.n_embd / c.n_head : c.head_dim);
  const double scale = c.attn_scale > 0 ? c.attn_scale : 1 / std::sqrt(head);
  if (std::abs(scale * std::sqrt(width) - 1) > 1e-6) {
    Refuse(a, a.windows ? "query_pre_attn_scalar" : "attn_scale",
           StrCat("multiplies scores by ", width, "^-1/2"));
  }
  if (a.square && c.n_head * c.head_dim != c.n_embd) {
    Refuse(a, "head_dim", "has heads of hidden_size / num_attention_heads numbers");
  }
  if (!a.windows && c.window > 0 && c.window < c.block_size) {
    Refuse(a, "sliding_window",
           StrCat("sees all tokens. With \"max_position_embeddings\" of at most ", c.window,
                  ", where it does the same, the model can be exported"));
  }
  if (c.activation == nn::MlpActivation::kGeluExact || c.activation == nn::MlpActivation::kRelu ||
      c.activation == nn::MlpActivation::kRelu2 || c.activation == nn::MlpActivation::kSilu) {
    Refuse(a, "activation_function", "has gelu_new");
  }
  if (c.rope.scaling == RotaryScaling::kLlama3 && a.name != "llama") {
    Refuse(a, "rope_scaling", "has no \"llama3\" scaling");
  }
  if (a.name == "gemma3" && c.window > 0 && c.rope_local_theta == 0 &&
      c.rope.scaling != RotaryScaling::kNone) {
    Refuse(a, "rope_scaling", "does not scale in layers with a window");
  }
  if (a.name == "gemma2") {
    if (!c.tie_embeddings) Refuse(a, "tie_word_embeddings", "has no head of its own");
    if (c.attn_softcap == 0) Refuse(a, "attn_logit_softcapping", "always has a cap");
    if (c.logit_softcap == 0) Refuse(a, "final_logit_softcapping", "always has a cap");
  }
  if (a.name == "gemma3" && c.attn_softcap > 0) {
    Refuse(a, "attn_logit_softcapping", "has no such cap");
  }
  if (a.name == "smollm3") {
    for (int64_t i = 0; i < c.n_layer; ++i) {
      if (HasRope(c, i) != ((i + 1) % 4 != 0)) {
        Refuse(a, "no_rope_layers", "has no rotary embedding in every fourth layer");
      }
    }
  }
  if (c.mixture.n_expert > 0) {
    if (c.n_dense > 0) Refuse(a, "mlp_only_layers", "has experts in all layers");
    if (a.name == "qwen3moe" && !c.mixture.router.normalise) {
      Refuse(a, "norm_topk_prob", "makes the shares of the chosen experts add up to 1");
    }
  }
}

uint32_t U32(int64_t value) { return static_cast<uint32_t>(value); }

uint32_t FileType(GgufType type) {  // llama.cpp's enumeration
  switch (type) {
    case GgufType::kF32:
      return 0;
    case GgufType::kF16:
      return 1;
    case GgufType::kQ8_0:
      return 7;
    case GgufType::kBF16:
      return 32;
  }
  throw ArgumentError("GGUF: no such type");
}

GgufMetadata MetadataOf(const Architecture& a, const GptConfig& c, GgufType type,
                        const std::string& name) {
  GgufMetadata out = {{"general.architecture", std::string(a.name)},
                      {"general.type", std::string("model")},
                      {"general.name", name},
                      {"general.file_type", FileType(type)},
                      {"general.quantization_version", uint32_t{2}}};
  const auto add = [&](std::string_view key, GgufValue value) {
    out.emplace_back(StrCat(a.name, ".", key), std::move(value));
  };
  const auto number = [](double value) { return static_cast<float>(value); };
  add("vocab_size", U32(c.vocab_size));
  add("context_length", U32(c.block_size));
  add("embedding_length", U32(c.n_embd));
  add("block_count", U32(c.n_layer));
  const bool experts = c.mixture.n_expert > 0;
  add("feed_forward_length", U32(experts && a.name == "llama" ? c.mixture.n_inner : c.n_inner));
  add("attention.head_count", U32(c.n_head));
  add("attention.head_count_kv", U32(c.n_kv_head));
  add("attention.key_length", U32(c.head_dim));
  add("attention.value_length", U32(c.head_dim));
  add(c.norm == NormKind::kLayerNorm ? "attention.layer_norm_epsilon"
                                     : "attention.layer_norm_rms_epsilon",
      number(c.norm_eps));
  if (experts) {
    add("expert_count", U32(c.mixture.n_expert));
    add("expert_used_count", U32(c.mixture.n_expert_used));
    if (a.name != "llama") add("expert_feed_forward_length", U32(c.mixture.n_inner));
  }
  if (c.position == Position::kRope) {
    add("rope.dimension_count", U32(c.head_dim));
    add("rope.freq_base", number(c.rope.theta));
    if (c.rope.scaling == RotaryScaling::kLinear) {
      add("rope.scaling.type", std::string("linear"));
      add("rope.scaling.factor", number(c.rope.factor));
    }
  }
  if (a.windows) {
    // Gemma 2's default is not none.
    if (c.window > 0 || a.name == "gemma2") {
      add("attention.sliding_window", U32(c.window > 0 ? c.window : c.block_size));
      add("attention.sliding_window_pattern", U32(c.window_pattern));
    }
    if (c.window > 0) {
      add("rope.freq_base_swa", number(c.rope_local_theta > 0 ? c.rope_local_theta : c.rope.theta));
    }
  }
  if (c.attn_softcap > 0) add("attn_logit_softcapping", number(c.attn_softcap));
  if (c.logit_softcap > 0) add("final_logit_softcapping", number(c.logit_softcap));
  return out;
}

// "model.layers.3.mlp.experts.7.up_proj.weight" is layer "mlp.experts.up_proj", kind "weight" of
// block 3; its expert does not matter, as they are stacked in their order.
struct WeightPath {
  std::string block, layer, kind;

  explicit WeightPath(const std::string& name) {
    const size_t dot = name.rfind('.');
    kind = name.substr(dot + 1);
    layer = name.substr(0, dot);
    for (const std::string_view prefix : {"model.layers.", "h."}) {
      if (!layer.starts_with(prefix)) continue;
      const size_t end = layer.find('.', prefix.size());
      block = layer.substr(prefix.size(), end - prefix.size());
      layer = layer.substr(end + 1);
    }
    constexpr std::string_view kExperts = ".experts.";
    if (const size_t at = layer.find(kExperts); at != std::string::npos) {
      const size_t begin = at + kExperts.size();
      layer.erase(begin, layer.find('.', begin) + 1 - begin);
      stacked = true;
    }
  }
  bool stacked = false;
};

// Rows of each head from split halves to neighbouring pairs: row i of D goes to 2i, D/2 + i to
// 2i + 1.
Tensor Interleaved(const Tensor& x, int64_t head_dim) {
  const int64_t heads = x.dim(0) / head_dim, columns = x.numel() / x.dim(0);
  return x.Reshape({heads, 2, head_dim / 2, columns}).Transpose(1, 2).Contiguous().View(x.shape());
}

class Converter {
 public:
  Converter(const Architecture& a, const GptConfig& c, GgufType type)
      : architecture_(a), config_(c), type_(type) {}

  void Add(const SafetensorsItem& item) {
    const WeightPath path(item.name);
    const LayerName name = NameOf(config_, path.layer);
    const std::string block = path.block.empty() ? "" : StrCat("blk.", path.block, ".");
    const auto [it, is_new] =
        index_.emplace(StrCat(block, name.gguf, ".", path.kind), tensors_.size());
    Shape shape(item.shape);
    const bool transposed = architecture_.name == "gpt2" &&
                            path.layer.find(".c_") < std::string::npos && path.kind == "weight";
    if (transposed) std::swap(shape[0], shape[1]);
    const bool plus_one = config_.norm_offset != 0 && name.gguf.ends_with("norm");
    const bool turned = architecture_.neighbouring_pairs &&
                        (path.layer == "self_attn.q_proj" || path.layer == "self_attn.k_proj");
    if (is_new) {
      const Shape stacked =
          path.stacked ? Shape{config_.mixture.n_expert, shape[0], shape[1]} : shape;
      tensors_.push_back({it->first, TypeOf(name, shape), stacked, {}});
    }
    tensors_[it->second].parts.push_back(
        [produce = item.produce, transposed, plus_one, turned, head_dim = config_.head_dim] {
          const Tensor x = produce();
          return transposed ? x.Transpose(0, 1)
                 : plus_one ? PlusOne(x)
                 : turned   ? Interleaved(x, head_dim)
                            : x;
        });
  }

  // Divisors of the frequencies.
  void AddRopeFrequencies() {
    if (config_.rope.scaling != RotaryScaling::kLlama3) return;
    const auto plain = RotaryFrequencies(config_.head_dim, {.theta = config_.rope.theta});
    const auto scaled = RotaryFrequencies(config_.head_dim, config_.rope);
    std::vector<float> divisors;
    for (size_t i = 0; i < plain.size(); ++i) {
      divisors.push_back(static_cast<float>(plain[i] / scaled[i]));
    }
    const Tensor x = Tensor::FromVector(divisors, {std::ssize(divisors)});
    tensors_.push_back({"rope_freqs.weight", GgufType::kF32, x.shape(), {[x] { return x; }}});
  }

  // Where the architecture insists on it.
  void AddTiedHead() {
    if (!architecture_.own_head || index_.contains("output.weight")) return;
    GgufTensor head = tensors_[index_.at("token_embd.weight")];
    head.name = "output.weight";
    tensors_.push_back(std::move(head));
  }

  std::vector<GgufTensor> Take() && { return std::move(tensors_); }

 private:
  static Tensor PlusOne(const Tensor& x) {
    const Tensor y = x.To(DType::kF32).Clone();
    for (float& v : std::span(y.data<float>(), static_cast<size_t>(y.numel()))) v += 1;
    return y;
  }

  GgufType TypeOf(const LayerName& name, const Shape& shape) const {
    if (shape.ndim() == 1 || name.is_f32) return GgufType::kF32;
    if (type_ == GgufType::kQ8_0 && shape[-1] % kQ8_0Block != 0) return GgufType::kF16;
    return type_;
  }

  const Architecture& architecture_;
  const GptConfig config_;
  const GgufType type_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t> index_;  // by name
};

}  // namespace

GgufModel ToGguf(const GptConfig& config, std::span<const SafetensorsItem> weights, GgufType type,
                 const std::string& name) {
  const GptConfig c = Resolved(config);
  const Architecture& a = ArchitectureOf(c);
  CheckSaid(a, c);
  Converter converter(a, c, type);
  for (const SafetensorsItem& item : weights) converter.Add(item);
  converter.AddTiedHead();
  converter.AddRopeFrequencies();
  return {.metadata = MetadataOf(a, c, type, name), .tensors = std::move(converter).Take()};
}

}  // namespace lockstep::models
