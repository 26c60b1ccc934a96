#include "nn/attention/multihead_attention.h"

#include "core/step_state.h"
#include "nn/dropout.h"
#include "nn/linear.h"

namespace lockstep::nn {
namespace {

// Checked before any child is made, so that the message speaks of what the user gave.
int64_t CheckHeads(int64_t dim, int64_t n_head, int64_t n_kv_head) {
  LS_CHECK(n_head > 0 && dim > 0 && dim % n_head == 0, "MultiheadAttention: the width (dim = ", dim,
           ") must be a positive multiple of the number of heads (n_head = ", n_head, ")");
  LS_CHECK(n_kv_head >= 0 && (n_kv_head == 0 || n_head % n_kv_head == 0),
           "MultiheadAttention: n_head = ", n_head,
           " must be a multiple of the number of key and value heads (n_kv_head = ", n_kv_head,
           ")");
  return n_head;
}

std::shared_ptr<Linear> Projection(int64_t from, int64_t to,
                                   const MultiheadAttentionOptions& options) {
  return std::make_shared<Linear>(from, to, LinearOptions{.bias = options.bias});
}

// [B, T, heads D] -> [B, T, heads, D]; copies nothing.
Tensor Heads(const Tensor& x, int64_t heads) {
  return x.View({x.dim(0), x.dim(1), heads, x.dim(2) / heads});
}

}  // namespace

MultiheadAttention::MultiheadAttention(int64_t dim, int64_t n_head,
                                       const MultiheadAttentionOptions& options)
    : n_head_(CheckHeads(dim, n_head, options.n_kv_head)),
      n_kv_head_(options.n_kv_head == 0 ? n_head : options.n_kv_head),
      dropout_(options.dropout),
      q_proj_(this, "q_proj", Projection(dim, dim, options)),
      k_proj_(this, "k_proj",
              Projection(options.key_dim == 0 ? dim : options.key_dim, dim / n_head * n_kv_head_,
                         options)),
      v_proj_(this, "v_proj",
              Projection(options.key_dim == 0 ? dim : options.key_dim, dim / n_head * n_kv_head_,
                         options)),
      out_proj_(this, "out_proj", Projection(dim, dim, options)) {}

Tensor MultiheadAttention::Forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const ops::AttentionOptions& options) {
  for (const Tensor* x : {&query, &key, &value}) {
    LS_CHECK(x->defined() && x->ndim() == 3,
             "MultiheadAttention takes query, key and value of shape [B, T, C], got ",
             x->Describe());
  }
  LS_CHECK(options.dropout == 0 && options.site == 0,
           "MultiheadAttention: a call has no dropout of its own; give it to the constructor: "
           "MultiheadAttentionOptions{.dropout = ",
           options.dropout, "}");
  ops::AttentionOptions own = options;
  own.dropout = dropout_;
  if (dropout_ > 0 && CurrentStepState()) own.site = RandomSite(path() + ".attn_dropout");
  const Tensor y = ops::Attention(Heads(q_proj_(query), n_head_), Heads(k_proj_(key), n_kv_head_),
                                  Heads(v_proj_(value), n_kv_head_), own);
  return out_proj_(y.View(query.shape()));
}

}  // namespace lockstep::nn
