// Attention from one sequence to another, or to itself.
#pragma once

#include "core/module.h"
#include "kernels/masked_attention/masked_attention.h"

namespace lockstep::nn {

struct MultiheadAttentionOptions {
  int64_t n_kv_head = 0;  // heads of keys and values; 0: n_head
  int64_t key_dim = 0;    // the width of what keys and values are made of; 0: dim
  bool bias = true;       // of all four projections
  double dropout = 0;     // of the attention weights
};

// Vaswani et al., "Attention is all you need" (2017):
//   y = out_proj(concat_h(softmax(q_h k_h^T / sqrt(D) + mask) v_h))
// with q = q_proj(query), k = k_proj(key), v = v_proj(value) and D = dim / n_head. query [B, S,
// dim], key and value [B, T, key_dim]; y [B, S, dim]. Children, replaceable: q_proj, k_proj, v_proj
// and out_proj, Layers. The options of a call are ops::Attention's, except the dropout, which is
// this module's, with the site "<path>.attn_dropout":
//   Tensor y = attention(x, x, x);                            // self-attention
//   y = attention(x, memory, memory, {.mask = mask});         // cross attention
// (where `attention` is a Child: ops::AttentionOptions{.mask = mask}). A bool mask is true where a
// query sees a key: the opposite of what torch.nn.MultiheadAttention takes. CausalSelfAttention is
// the fused attention of decoders. Throws ArgumentError unless n_head divides dim, and n_kv_head
// n_head, and for a call with a dropout.
class MultiheadAttention : public ModuleOf<Tensor(const Tensor&, const Tensor&, const Tensor&,
                                                  const ops::AttentionOptions&)> {
 public:
  MultiheadAttention(int64_t dim, int64_t n_head, const MultiheadAttentionOptions& options = {});

  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                    const ops::AttentionOptions& options = {}) {
    return ModuleOf::operator()(query, key, value, options);
  }

 protected:
  Tensor Forward(const Tensor& query, const Tensor& key, const Tensor& value,
                 const ops::AttentionOptions& options) override;

 private:
  int64_t n_head_, n_kv_head_;
  double dropout_;
  Child<Layer> q_proj_, k_proj_, v_proj_, out_proj_;
};

}  // namespace lockstep::nn
