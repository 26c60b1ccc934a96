#include "models/export/gguf_model.h"

#include <cmath>
#include <map>
#include <string_view>

#include "models/gpt/hf/hf_format.h"

namespace lockstep::models {
namespace {

[[noreturn]] void Refuse(const GgufArchitecture& a, std::string_view field,
                         const std::string& why) {
  throw InputError(StrCat("config.json: \"", field, "\" cannot be written to GGUF: llama.cpp's ",
                          a.name, " ", why, ". Export the model with --format=hf instead"));
}

// What would be ignored, or is fixed there.
void CheckSaid(const GgufArchitecture& a, const GptConfig& c) {
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

GgufMetadata MetadataOf(const GgufArchitecture& a, const GptConfig& c, GgufType type,
                        const std::string& name) {
  GgufMetadata out = {{"general.architecture", std::string(a.name)},
                      {"general.type", std::string("model")},
                      {"general.name", name},
                      {"general.file_type", GgufFileType(type)},
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
    if (c.rope.scaling == RotaryScaling::kLlama3) {
      // Of what rope_freqs.weight follows from; llama.cpp takes that tensor alone.
      add("rope.scaling.original_context_length", U32(c.rope.original_length));
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

class Converter {
 public:
  Converter(const GgufArchitecture& a, const GptConfig& c, GgufType type)
      : architecture_(a), config_(c), type_(type) {}

  void Add(const SafetensorsItem& item) {
    const GgufPlace place = GgufPlaceOf(architecture_, config_, item.name);
    const auto [it, is_new] = index_.emplace(place.name, tensors_.size());
    Shape shape(item.shape);
    if (place.transposed) std::swap(shape[0], shape[1]);
    if (is_new) {
      const Shape stacked =
          place.expert >= 0 ? Shape{config_.mixture.n_expert, shape[0], shape[1]} : shape;
      tensors_.push_back({it->first, TypeOf(place.is_f32, shape), stacked, {}});
    }
    tensors_[it->second].parts.push_back(
        [produce = item.produce, place, head_dim = config_.head_dim] {
          const Tensor x = produce();
          return place.transposed    ? x.Transpose(0, 1)
                 : place.plus_one    ? PlusNumber(x, 1)
                 : place.interleaved ? Interleaved(x, head_dim)
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
  GgufType TypeOf(bool is_f32, const Shape& shape) const {
    if (shape.ndim() == 1 || is_f32) return GgufType::kF32;
    if (type_ == GgufType::kQ8_0 && shape[-1] % kQ8_0Block != 0) return GgufType::kF16;
    return type_;
  }

  const GgufArchitecture& architecture_;
  const GptConfig config_;
  const GgufType type_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t> index_;  // by name
};

}  // namespace

const GgufArchitecture& GgufArchitectureOf(const GptConfig& c) {
  const std::string type = HfModelType(c);
  std::string all;
  for (const GgufArchitecture& a : GgufArchitectures()) {
    if (a.model_type == type) return a;
    all += StrCat(all.empty() ? "" : ", ", a.model_type);
  }
  throw InputError(StrCat("config.json: \"model_type\" is \"", type,
                          "\", a combination of options that llama.cpp does not have; it has ", all,
                          ". Export the model with --format=hf instead"));
}

uint32_t GgufFileType(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return 0;
    case GgufType::kF16:
      return 1;
    case GgufType::kQ8_0:
      return 7;
    case GgufType::kBF16:
      return 32;
    case GgufType::kQ4_0:
    case GgufType::kQ6_K:
      break;  // which nothing writes
  }
  throw ArgumentError("GGUF: no such type");
}

GgufModel ToGguf(const GptConfig& config, std::span<const SafetensorsItem> weights, GgufType type,
                 const std::string& name) {
  const GptConfig c = Resolved(config);
  const GgufArchitecture& a = GgufArchitectureOf(c);
  CheckSaid(a, c);
  Converter converter(a, c, type);
  for (const SafetensorsItem& item : weights) converter.Add(item);
  converter.AddTiedHead();
  converter.AddRopeFrequencies();
  return {.metadata = MetadataOf(a, c, type, name), .tensors = std::move(converter).Take()};
}

}  // namespace lockstep::models
