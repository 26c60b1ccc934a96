// What the layers of a transformer have in common.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/expert_router/expert_router.h"
#include "kernels/residual_norm/residual_norm.h"
#include "nn/rotary.h"

namespace lockstep::nn {

enum class MlpActivation {
  kGelu,       // the tanh form, fused into c_fc
  kGeluExact,  // by the error function
  kRelu,
  kRelu2,  // the square of that
  kSilu,
  kSwiGlu,     // gated: ops::SwiGlu
  kGegluTanh,  // gated: ops::GegluTanh
};

// Whether c_fc gives a gate in addition to the values that it multiplies.
inline bool IsGated(MlpActivation a) {
  return a == MlpActivation::kSwiGlu || a == MlpActivation::kGegluTanh;
}

// RMS norms of queries and keys, before the rotary embedding.
enum class QkNorm {
  kNone,
  kHead,  // of each head by itself, with the same weight [head_dim], as in Qwen3 and Gemma 3
  kFull,  // of all heads together, with a weight as wide, as in OLMo 2
};

// Where a block has its norms.
enum class NormPlace {
  kPre,       // before each branch, as in GPT-2 and Llama
  kPost,      // after each branch, before it is added, as in OLMo 2
  kSandwich,  // both, as in Gemma 2
};

// The experts that take the place of an MLP (nn/mixture/mixture_of_experts.h).
struct MixtureOptions {
  int64_t n_expert = 0;       // 0: no mixture
  int64_t n_expert_used = 2;  // experts per token
  int64_t n_inner = 0;        // width inside of an expert; 0: that of the MLP
  int64_t n_shared = 0;       // hidden width of the shared expert, which all tokens use; 0: none
  bool shared_gate = false;   // whether the sigmoid of a gate multiplies it, as in Qwen2-MoE
  RouterOptions router = {};
  double balance_loss = 0;  // coefficients of RouterLossOptions
  double z_loss = 0;
  double bias_rate = 0;  // with sigmoid scores: how far a step moves an expert's bias
  bool operator==(const MixtureOptions&) const = default;
};

struct TransformerOptions {
  int64_t n_embd = 0;  // a multiple of n_head, unless there is a head_dim
  int64_t n_head = 0;
  bool bias = true;            // of the linear layers and the layer norms
  double dropout = 0;          // of the attention weights and of both branches
  double init_std = 0.02;      // of weights; biases start at 0
  double residual_std = 0.02;  // of the two c_proj weights; GPT-2: init_std / sqrt(2 * layers)
  int64_t n_kv_head = 0;       // heads of keys and values; 0: n_head
  int64_t head_dim = 0;        // width of a head; 0: n_embd / n_head
  bool qkv_bias = false;       // whether queries, keys and values have biases even without `bias`
  QkNorm qk_norm = QkNorm::kNone;
  int64_t value_tokens = 0;  // of how many tokens values have an embedding added; 0: none have
  double attn_scale = 0;     // of the scores; 0: head_dim^-1/2
  double attn_softcap = 0;   // of the scores; 0: none
  int64_t window = 0;        // how many keys a query sees, including its own; 0: all
  int64_t n_inner = 0;       // width inside of the MLP; 0: 4 n_embd
  NormKind norm = NormKind::kLayerNorm;
  double norm_eps = 1e-5;
  double norm_offset = 0;   // what is added to the weight of norms, also of queries and keys
  bool norm_weight = true;  // whether norms have one; only RMS norms may have none
  NormPlace norm_place = NormPlace::kPre;
  bool embed_mix = false;  // whether blocks begin with a StreamMix
  MlpActivation activation = MlpActivation::kGelu;
  // Turns queries and keys by their positions, shared by the model's layers; null: positions are up
  // to the embedding.
  std::shared_ptr<Rotary> rotary;
  MixtureOptions mixture = {};
};

}  // namespace lockstep::nn
