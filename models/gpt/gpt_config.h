// The shape of a GPT: GPT-2, Llama, what came after them, combinations, and mixtures of experts.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/rotary_embedding/rotary_embedding.h"
#include "models/options/option_lora.h"
#include "models/options/option_offload.h"
#include "models/options/option_recompute.h"
#include "nn/transformer_options.h"

namespace lockstep::models {

enum class Position {
  kLearned,  // a table of block_size rows, added to the token embedding
  kRope,     // rotary embedding of queries and keys
};

struct GptConfig {
  int64_t vocab_size = 50257;
  int64_t block_size = 1024;  // longest sequence, in tokens
  int64_t n_layer = 12;
  int64_t n_head = 12;
  int64_t n_embd = 768;
  double dropout = 0;
  bool bias = true;            // in linear layers and layer norms
  bool tie_embeddings = true;  // the output head is the token embedding
  int64_t n_kv_head = 0;       // heads of keys and values; 0: n_head
  int64_t head_dim = 0;        // width of a head; 0: n_embd / n_head
  bool qkv_bias = false;       // of queries, keys and values, where `bias` is false
  nn::QkNorm qk_norm = nn::QkNorm::kNone;
  bool value_embed = false;    // embeddings are added to the values of every other layer
  double attn_scale = 0;       // of attention's scores; 0: head_dim^-1/2
  double attn_softcap = 0;     // scores s become cap tanh(s / cap); 0: no cap
  int64_t window = 0;          // how many tokens a query sees, including its own; 0: all before it
  int64_t window_pattern = 0;  // every window_pattern-th layer attends to all tokens; 0: none
  int64_t n_inner = 0;         // hidden width of the MLP; 0: DefaultInner
  NormKind norm = NormKind::kLayerNorm;
  double norm_eps = 1e-5;
  int64_t norm_offset = 0;  // 0 or 1: norms multiply by offset + weight
  bool norm_weight = true;  // norms multiply by a weight; only RMS norms may have none
  nn::NormPlace norm_place = nn::NormPlace::kPre;
  nn::MlpActivation activation = nn::MlpActivation::kGelu;
  Position position = Position::kLearned;
  RotaryOptions rope = {};  // for kRope
  double rope_local_theta =
      0;                    // of layers with a window, which then do not scale; 0: as the others
  int64_t rope_skip = 0;    // every rope_skip-th layer has no rotary embedding; 0: all have
  double embed_scale = 1;   // factor of token embeddings, rounded to their dtype
  bool embed_norm = false;  // the embedding ends in an RMS norm without a weight
  bool embed_mix =
      false;  // blocks begin with a x + b x0, x0 the embedding (nn/stream/stream_mix.h)
  double logit_softcap = 0;  // logits x become cap tanh(x / cap); 0: no cap
  double init_std = 0.02;    // of initial weights; residual projections: init_std / sqrt(2 n_layer)
  bool init_zero = false;    // residual projections, and an untied head, start at zero instead
  // How many rows of logits (tokens of a batch) are in memory at once while a loss is computed; 0:
  // no limit. More than one chunk changes the order in which the head's gradient is summed. Large
  // micro-batches profit from more (ops::LossChunk).
  int64_t loss_chunk = 4096;
  double z_loss = 0;  // of a training step's loss, as nn::LmHead says; 0: none
  // What the backward of a training step computes again; the bits stay the same.
  RecomputeChoice recompute = {};
  // What waits in the host's memory; the bits stay the same. Here activations and weights, of the
  // blocks; the optimizer's state is up to its optimizer.
  OffloadChoice offload = {};
  // Experts in the place of the MLPs; n_inner 0: that of the MLPs.
  nn::MixtureOptions mixture = {};
  int64_t n_dense = 0;  // with experts: how many of the first layers have an MLP
  // Adapters; everything else is frozen then (nn/lora/add_lora.h).
  LoraOptions lora = {};

  int64_t key_heads() const { return n_kv_head == 0 ? n_head : n_kv_head; }
  bool operator==(const GptConfig&) const = default;
};

// Whether the layer's attention is limited to the window.
bool HasWindow(const GptConfig& config, int64_t layer);
// Whether the layer has a rotary embedding.
bool HasRope(const GptConfig& config, int64_t layer);

// Whether embeddings are added to the layer's values: in the last one, and every other before it.
bool HasValueEmbed(const GptConfig& config, int64_t layer);
// Whether a parameter of this name is such a table, whose rows are only looked up: no product.
bool IsValueEmbed(std::string_view parameter);

// 4 n_embd; for gated activations, which have three matrices instead of two, 8/3 n_embd rounded up
// to a multiple of 64.
int64_t DefaultInner(int64_t n_embd, nn::MlpActivation activation);

// Returns the configuration with n_kv_head, head_dim, n_inner and mixture.n_inner filled in, and
// with qkv_bias only if it has an effect.
GptConfig Resolved(GptConfig config);

// Throws an ArgumentError naming the first field that is out of range or does not fit the others.
void Validate(const GptConfig& config);

// The words in options and files, and back. Any other word is an ArgumentError that lists these.
std::string_view Name(NormKind norm);                 // layer_norm, rms_norm
std::string_view Name(nn::MlpActivation activation);  // gelu, gelu_exact, relu, relu2, silu, ...
std::string_view Name(Position position);             // learned, rope
std::string_view Name(RotaryScaling scaling);         // none, linear, llama3
std::string_view Name(nn::QkNorm norm);               // none, head, full
std::string_view Name(nn::NormPlace place);           // pre, post, sandwich
// softmax (over the chosen experts, as in Mixtral), softmax_all (shares of all experts, as in
// OLMoE), sigmoid (DeepSeek-V3). Does not tell the scale.
std::string_view RouterName(const RouterOptions& router);
RouterOptions ParseRouter(std::string_view name);
NormKind ParseNorm(std::string_view name);
nn::MlpActivation ParseActivation(std::string_view name);
Position ParsePosition(std::string_view name);
RotaryScaling ParseRopeScaling(std::string_view name);
nn::QkNorm ParseQkNorm(std::string_view name);
nn::NormPlace ParseNormPlace(std::string_view name);

}  // namespace lockstep::models
