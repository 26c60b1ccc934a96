#include "nn/attention/causal_self_attention.h"

#include "core/step_state.h"
#include "kernels/binary/binary.h"
#include "kernels/concat/concat.h"
#include "nn/documents.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/kv_cache.h"
#include "nn/linear.h"
#include "nn/rms_norm.h"
#include "nn/tokens.h"

namespace lockstep::nn {
namespace {

LinearOptions Options(bool bias, double std) {
  return {.bias = bias, .weight_init = Normal(0, std), .bias_init = Constant(0)};
}

// Checked before any child is made, so that the message speaks of what the user gave.
int64_t CheckHeads(const TransformerOptions& o) {
  LS_CHECK(o.n_head > 0 && o.n_embd > 0 && (o.head_dim != 0 || o.n_embd % o.n_head == 0),
           "attention: the width (n_embd = ", o.n_embd,
           ") must be a positive multiple of the number of heads (n_head = ", o.n_head,
           "), unless these have a width of their own (head_dim)");
  LS_CHECK(o.head_dim >= 0, "attention: the width of a head (head_dim) must not be negative, got ",
           o.head_dim);
  return o.n_head;
}

int64_t HeadDim(const TransformerOptions& o) {
  return o.head_dim > 0 ? o.head_dim : o.n_embd / o.n_head;
}

int64_t CheckKvHeads(int64_t n_head, int64_t n_kv_head) {
  if (n_kv_head == 0) return n_head;
  LS_CHECK(n_kv_head > 0 && n_head % n_kv_head == 0, "attention: n_head = ", n_head,
           " must be a multiple of the number of key and value heads (n_kv_head = ", n_kv_head,
           ")");
  return n_kv_head;
}

std::unique_ptr<Child<Layer>> MakeValueEmbed(Module* owner, int64_t width,
                                             const TransformerOptions& o) {
  if (o.value_tokens == 0) return nullptr;
  return std::make_unique<Child<Layer>>(
      owner, "value_embed",
      std::make_shared<Embedding>(o.value_tokens, width, Normal(0, o.init_std)));
}

std::unique_ptr<Child<Layer>> MakeNorm(Module* owner, const char* name, int64_t heads,
                                       const TransformerOptions& o) {
  if (o.qk_norm == QkNorm::kNone) return nullptr;
  const int64_t normed = o.qk_norm == QkNorm::kFull ? heads : 1;
  return std::make_unique<Child<Layer>>(
      owner, name,
      std::make_shared<RmsNorm>(normed * HeadDim(o), o.norm_eps, o.norm_offset, o.norm_weight));
}

}  // namespace

CausalSelfAttention::CausalSelfAttention(const TransformerOptions& options)
    : n_head_(CheckHeads(options)),
      n_kv_head_(CheckKvHeads(n_head_, options.n_kv_head)),
      dropout_(options.dropout),
      scale_(options.attn_scale),
      softcap_(options.attn_softcap),
      window_(options.window),
      qk_norm_(options.qk_norm),
      rotary_(options.rotary),
      c_attn_(
          this, "c_attn",
          std::make_shared<Linear>(options.n_embd, (n_head_ + 2 * n_kv_head_) * HeadDim(options),
                                   Options(options.bias || options.qkv_bias, options.init_std))),
      value_embed_(MakeValueEmbed(this, n_kv_head_ * HeadDim(options), options)),
      q_norm_(MakeNorm(this, "q_norm", n_head_, options)),
      k_norm_(MakeNorm(this, "k_norm", n_kv_head_, options)),
      c_proj_(this, "c_proj",
              std::make_shared<BranchLinear>(n_head_ * HeadDim(options), options.n_embd,
                                             Options(options.bias, options.residual_std))),
      resid_dropout_(this, "resid_dropout", std::make_shared<BranchDropout>(options.dropout)) {}

void CausalSelfAttention::KeepHeads(int64_t parts, int64_t part, int64_t key_copies,
                                    KeysFunction copy_keys) {
  const int64_t keys = n_kv_head_ * key_copies;
  LS_CHECK(n_head_ % parts == 0 && keys % parts == 0 &&
               (n_kv_head_ % parts == 0 || parts % n_kv_head_ == 0),
           "attention: ", n_head_, " heads and ", n_kv_head_, " key heads do not divide into ",
           parts,
           " equal parts: use another number of tensor-parallel ranks, that divides n_head, "
           "and divides n_kv_head or is a multiple of it");
  n_head_ /= parts;
  n_kv_head_ = keys / parts;
  first_head_ += part * n_head_;
  copy_keys_ = std::move(copy_keys);
}

Tensor CausalSelfAttention::AddValues(const Tensor& qkv) {
  const Tensor ids = CurrentTokens();
  LS_CHECK(ids.defined(),
           "attention with an embedding of values needs the ids of the tokens: write "
           "const nn::TokenScope tokens(ids) around the forward");
  const Tensor values = (*value_embed_)(ids);
  const int64_t width = values.dim(2);
  const std::vector<Tensor> parts = qkv.Split({qkv.dim(2) - width, width}, 2);
  return ops::Concat({parts[0], parts[1] + values}, 2);
}

Tensor CausalSelfAttention::NormHeads(const Tensor& qkv) {
  const int64_t h = n_head_, g = n_kv_head_, all = h + 2 * g, d = qkv.dim(2) / all;
  if (qk_norm_ == QkNorm::kFull) {
    const std::vector<Tensor> parts = qkv.Split({h * d, g * d, g * d}, 2);
    return ops::Concat({(*q_norm_)(parts[0]), (*k_norm_)(parts[1]), parts[2]}, 2);
  }
  const std::vector<Tensor> parts = qkv.View({qkv.dim(0), qkv.dim(1), all, d}).Split({h, g, g}, 2);
  return ops::Concat({(*q_norm_)(parts[0]), (*k_norm_)(parts[1]), parts[2]}, 2).View(qkv.shape());
}

Tensor CausalSelfAttention::Attend(const Tensor& x) {
  Tensor qkv = c_attn_(x);
  if (value_embed_) qkv = AddValues(qkv);
  if (copy_keys_) qkv = copy_keys_(qkv);
  if (q_norm_) qkv = NormHeads(qkv);
  const bool elsewhere = attend_ && GradEnabled();
  const Documents& documents = CurrentDocuments();
  if (rotary_ && !elsewhere) {
    qkv = AtPositions(std::move(qkv), [&](Tensor part, int64_t first_position) {
      return (*rotary_)(std::move(part), n_head_ + n_kv_head_, first_position, documents.positions);
    });
  }
  ops::CausalAttentionOptions options{.scale = scale_, .softcap = softcap_, .window = window_};
  if (KvCacheScope* cache = KvCacheScope::Current()) {
    const int64_t h = n_head_, g = n_kv_head_, all = h + 2 * g;
    const Tensor heads = qkv.View({qkv.dim(0), qkv.dim(1), all, qkv.dim(2) / all});
    return cache
        ->Attend(this, heads.Slice(2, 0, h), heads.Slice(2, h, h + g), heads.Slice(2, h + g, all),
                 options)
        .View({qkv.dim(0), qkv.dim(1), h * heads.dim(3)});
  }
  options.dropout = dropout_;
  if (dropout_ > 0 && CurrentStepState()) options.site = RandomSite(path() + ".attn_dropout");
  options.first_head = first_head_;
  options.first_key = documents.first_key;
  if (elsewhere) return attend_(qkv, {n_head_, n_kv_head_, options, rotary_.get()});
  return ops::CausalAttention(qkv, n_head_, n_kv_head_, options);
}

ops::Branch CausalSelfAttention::Forward(ops::Branch x) {
  return resid_dropout_(c_proj_(Attend(ops::Complete(x))));
}

}  // namespace lockstep::nn
