#include "models/gpt/gguf/gguf_names.h"

namespace lockstep::models {
namespace {

constexpr GgufArchitecture kArchitectures[] = {
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

// "model.layers.3.mlp.experts.7.up_proj.weight" is layer "mlp.experts.up_proj", kind "weight" of
// expert 7 of block 3.
struct WeightPath {
  std::string block, layer, kind;
  int64_t expert = -1;

  explicit WeightPath(const std::string& name) {
    const size_t dot = name.rfind('.');
    kind = name.substr(dot + 1);
    layer = name.substr(0, dot);
    for (const std::string_view prefix : {"model.layers.", "h.", "transformer.h."}) {
      if (!layer.starts_with(prefix)) continue;
      const size_t end = layer.find('.', prefix.size());
      block = layer.substr(prefix.size(), end - prefix.size());
      layer = layer.substr(end + 1);
    }
    constexpr std::string_view kExperts = ".experts.";
    if (const size_t at = layer.find(kExperts); at != std::string::npos) {
      const size_t begin = at + kExperts.size(), end = layer.find('.', begin);
      expert = std::stoll(layer.substr(begin, end - begin));
      layer.erase(begin, end + 1 - begin);
    }
  }
};

}  // namespace

std::span<const GgufArchitecture> GgufArchitectures() { return kArchitectures; }

GgufPlace GgufPlaceOf(const GgufArchitecture& a, const GptConfig& c, const std::string& tensor) {
  const WeightPath path(tensor);
  const LayerName name = NameOf(c, path.layer);
  const std::string block = path.block.empty() ? "" : StrCat("blk.", path.block, ".");
  return {.name = StrCat(block, name.gguf, ".", path.kind),
          .expert = path.expert,
          .is_f32 = name.is_f32,
          .transposed = a.name == "gpt2" && path.layer.find(".c_") != std::string::npos &&
                        path.kind == "weight",
          .plus_one = c.norm_offset != 0 && name.gguf.ends_with("norm"),
          .interleaved = a.neighbouring_pairs &&
                         (path.layer == "self_attn.q_proj" || path.layer == "self_attn.k_proj")};
}

Tensor Interleaved(const Tensor& x, int64_t head_dim) {
  const int64_t heads = x.dim(0) / head_dim, columns = x.numel() / x.dim(0);
  return x.Reshape({heads, 2, head_dim / 2, columns}).Transpose(1, 2).Contiguous().View(x.shape());
}

Tensor Deinterleaved(const Tensor& x, int64_t head_dim) {
  const int64_t heads = x.dim(0) / head_dim, columns = x.numel() / x.dim(0);
  return x.Reshape({heads, head_dim / 2, 2, columns}).Transpose(1, 2).Contiguous().View(x.shape());
}

Tensor PlusNumber(const Tensor& x, float y) {
  const Tensor sum = x.To(DType::kF32).Clone();
  for (float& v : std::span(sum.data<float>(), static_cast<size_t>(sum.numel()))) v += y;
  return sum;
}

}  // namespace lockstep::models
