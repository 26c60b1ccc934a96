// The attention of GPT-2 and of Llama: heads that see their own position and those before it.
#pragma once

#include <memory>

#include "nn/residual_stream.h"
#include "nn/rotary.h"

namespace lockstep::nn {

struct CausalSelfAttentionOptions {
  bool bias = true;
  double dropout = 0;          // of the attention weights, and of the result
  double init_std = 0.02;      // of c_attn's weight; biases start at 0
  double residual_std = 0.02;  // of c_proj's weight; GPT-2: init_std / sqrt(2 * layers)
  int64_t n_kv_head = 0;       // heads of keys and values; 0: n_head
  // Turns queries and keys by their positions; null: positions are the embedding's business.
  std::shared_ptr<Rotary> rotary;
};

// Vaswani et al., "Attention is all you need" (2017), with a causal mask:
//   q, k, v = split(c_attn(x)); y = c_proj(concat_h(softmax(q_h k_h^T / sqrt(D)) v_h))
// x [B, T, n_embd] -> the same, as a branch. With D = n_embd / n_head, H = n_head and G =
// n_kv_head, children, replaceable: c_attn, a Layer (n_embd -> (H + 2 G) D, in the order q, k, v),
// c_proj (n_embd -> n_embd) and resid_dropout, BranchLayers. G < H is grouped-query attention
// (Ainslie et al., 2023): a key head serves H / G neighbouring query heads. The mask of the
// attention weights' dropout has the site
// "<path>.attn_dropout". Throws ArgumentError unless n_embd is a multiple of n_head, and that of
// n_kv_head.
class CausalSelfAttention : public BranchLayer {
 public:
  CausalSelfAttention(int64_t n_embd, int64_t n_head,
                      const CausalSelfAttentionOptions& options = {});

  int64_t n_head() const { return n_head_; }
  int64_t n_kv_head() const { return n_kv_head_; }

 protected:
  ops::Branch Forward(ops::Branch x) override;

 private:
  Tensor Attend(const Tensor& x);  // what c_proj takes

  int64_t n_head_, n_kv_head_;
  double dropout_;
  std::shared_ptr<Rotary> rotary_;
  Child<Layer> c_attn_;
  Child<BranchLayer> c_proj_, resid_dropout_;
};

}  // namespace lockstep::nn
