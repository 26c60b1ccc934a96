// The attention of GPT-2 and of Llama: heads that see their own position and those before it.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "kernels/attention/attention.h"
#include "nn/stream/residual_stream.h"
#include "nn/transformer_options.h"

namespace lockstep::nn {

// The arguments of a layer's attention, for qkv [B, T, (n_head + 2 n_kv_head) D].
struct AttentionCall {
  int64_t n_head, n_kv_head;
  ops::CausalAttentionOptions options;  // with first_key [B, T] of the whole sequence
  Rotary* rotary;                       // to be applied to q and k first; may be null
};

// Vaswani et al., "Attention is all you need" (2017), with a causal mask:
//   q, k, v = split(c_attn(x)); y = c_proj(concat_h(softmax(q_h k_h^T / sqrt(D)) v_h))
// x [B, T, n_embd] -> the same, as a branch. With D = head_dim, or n_embd / n_head, H = n_head and
// G = n_kv_head, children, replaceable: c_attn, a Layer (n_embd -> (H + 2 G) D, in the order q, k,
// v), c_proj (H D -> n_embd) and resid_dropout, BranchLayers. G < H is grouped-query attention
// (Ainslie et al., 2023): a key head serves H / G neighbouring query heads. With qk_norm two more,
// Layers: q_norm (q [B, T, H, D] -> the same) and k_norm, RmsNorms of each head by itself (Qwen
// Team, "Qwen3 technical report", 2025), or with QkNorm::kFull ([B, T, H D] -> the same) of all
// heads together (OLMo Team, "2 OLMo 2 Furious", 2025). With value_tokens another, value_embed
// (Layer: ids [B, T] -> [B, T, G D], an Embedding), is added to the values, for the ids of the
// nn::TokenScope, as in modded-nanogpt (Jordan et al., 2024). Scale, soft cap and window of the
// scores: ops::CausalAttentionOptions. The mask of the attention weights' dropout has the site
// "<path>.attn_dropout". Throws ArgumentError unless there is a head_dim or n_embd is a multiple of
// n_head, and n_head is one of n_kv_head.
class CausalSelfAttention : public BranchLayer {
 public:
  explicit CausalSelfAttention(const TransformerOptions& options);

  // The number of this rank's heads, if they are split across ranks.
  int64_t n_head() const { return n_head_; }
  int64_t n_kv_head() const { return n_kv_head_; }
  QkNorm qk_norm() const { return qk_norm_; }
  // Null without qk_norm.
  Child<Layer>* q_norm() const { return q_norm_.get(); }
  Child<Layer>* k_norm() const { return k_norm_.get(); }
  Child<Layer>* value_embed() const { return value_embed_.get(); }  // null without one
  // From now on it computes part `part` of the heads, which are in `parts` equal parts; c_attn and
  // c_proj belong to the same heads. With `key_copies`, `copy_keys` makes that many copies of each
  // key and value head in the output of c_attn, next to each other, each for an equal run of the
  // query heads; these are the key heads from then on. Throws ArgumentError unless `parts` divides
  // both numbers of heads, and divides n_kv_head without copies or is a multiple of it.
  using KeysFunction = std::function<Tensor(const Tensor& qkv)>;
  void KeepHeads(int64_t parts, int64_t part, int64_t key_copies = 1, KeysFunction copy_keys = {});
  // From now on, where gradients are recorded, `attend` computes the input of c_proj from the
  // output of c_attn, which may be that of a part of the sequence.
  using AttendFunction = std::function<Tensor(const Tensor& qkv, const AttentionCall& call)>;
  void AttendBy(AttendFunction attend) { attend_ = std::move(attend); }

 protected:
  ops::Branch Forward(ops::Branch x) override;

 private:
  Tensor Attend(const Tensor& x);  // the input of c_proj
  // qkv with the embeddings of this thread's tokens added to its values.
  Tensor AddValues(const Tensor& qkv);
  // qkv with its queries and keys normed.
  Tensor NormHeads(const Tensor& qkv);

  int64_t n_head_, n_kv_head_;
  int64_t first_head_ = 0;  // of the unsharded model
  double dropout_, scale_, softcap_;
  int64_t window_;
  QkNorm qk_norm_;
  std::shared_ptr<Rotary> rotary_;
  KeysFunction copy_keys_;  // empty: there is one copy
  AttendFunction attend_;   // empty: as in one process
  Child<Layer> c_attn_;
  std::unique_ptr<Child<Layer>> value_embed_, q_norm_, k_norm_;  // null: none
  Child<BranchLayer> c_proj_, resid_dropout_;
};

}  // namespace lockstep::nn
