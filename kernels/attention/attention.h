// Causal attention that never stores the matrix of scores.
#pragma once

#include "core/dispatcher.h"
#include "core/philox.h"
#include "core/step_state.h"
#include "core/tensor.h"
#include "kernels/dropout/dropout_mask.h"

namespace lockstep {

namespace ops {

struct CausalAttentionOptions {
  double dropout = 0;
  uint64_t site = 0;       // of the dropout
  int64_t first_head = 0;  // which query head of the unsharded model is the first of q
  double scale = 0;        // of the scores q_i . k_j; 0: 1 / sqrt(D)
  // Scaled scores s become softcap tanh(s / softcap), as in Gemma 2 (2024); 0: they do not.
  double softcap = 0;
  // Query i sees the keys i - window < j <= i: `window` of them, with its own, as in Mistral 7B
  // (2023); 0: all j <= i.
  int64_t window = 0;
  // i32 [B, S]: query i of sample b sees no key before position first_key[b, i]. Where documents
  // are packed one after another into a row, it is the position at which the query's document
  // begins. Along a row it does not decrease, and it is at most the query's own position: the CPU
  // throws ArgumentError where this does not hold; with other devices results are then unspecified.
  // Undefined: queries see keys from the first on.
  Tensor first_key = {};
};

// For each head: y_i = sum_{j <= i} softmax_j(q_i . k_j / sqrt(D)) v_j, unless `options` say
// otherwise. qkv [B, T, (H + 2G) D] holds the heads of q, k and v side by side, H = n_head of q and
// G = n_kv_head of k and v each (0: n_head, as GPT-2's c_attn). H is a multiple of G: G = H is
// multi-head attention, G < H grouped-query attention (Ainslie et al., 2023), where query head h
// uses key head h / (H / G). y [B, T, H D]. Any floating dtype.
//
// Scores are computed in tiles with a running softmax, in f32 or wider (Dao et al.,
// "FlashAttention", 2022), and recomputed by backward. Saves qkv, y and the log-sum-exp of each
// row, f32 [B, H, T] (f64 for f64). Tiles of keys that no query of a tile sees, because of a window
// or another document, cost nothing. On the CPU a document has the bits that it has in a row of its
// own, except with dropout.
//
// In a TrainingScope, dropout zeroes each probability with that probability and multiplies the
// others by 1 / (1 - dropout). The mask is a function of the step's seed and number, of `site`, and
// of the sample's index in the global batch, head, i and j, as AttentionKeeps defines.
Tensor CausalAttention(const Tensor& qkv, int64_t n_head, int64_t n_kv_head = 0,
                       const CausalAttentionOptions& options = {});

// The same for q [B, S, H, D] and k, v [B, T, G, D], where the queries are those of the last S <= T
// positions; y [B, S, H, D].
Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const CausalAttentionOptions& options = {});

}  // namespace ops

// ---- Dropout's mask. ----

// The random stream of one head of one sample in one step.
LS_HOST_DEVICE constexpr uint64_t AttentionDropoutStream(uint64_t site, int64_t step,
                                                         int64_t sample, int64_t head) {
  return StepStream(StepStream(StepStream(site, step), sample), head);
}

// Whether query i's probability of key j is kept. Four neighbouring keys share a Philox block.
LS_HOST_DEVICE constexpr bool AttentionKeeps(const Philox& random, uint64_t stream, int64_t i,
                                             int64_t j, uint32_t threshold) {
  const uint64_t block = static_cast<uint64_t>(i) << 32 | static_cast<uint64_t>(j) >> 2;
  return DropoutKeeps(random(stream, block), static_cast<uint64_t>(j), threshold);
}

struct AttentionDropout {
  double p = 0;
  uint64_t site = 0;
  Tensor step_values;      // StepValues as forward saw them; undefined: no dropout
  int64_t first_head = 0;  // of the unsharded model

  bool evaluated() const { return p > 0 && !step_values.defined(); }
};
// With the values of the current step, where there is one and p is not 0. Throws ArgumentError
// unless 0 <= p < 1, and if the step's state is on another device.
AttentionDropout MakeAttentionDropout(double p, uint64_t site, Device device,
                                      int64_t first_head = 0);

// ---- Scores. ----

// What becomes of q_i . k_j, and which keys a query sees of those up to its own: as in
// CausalAttentionOptions.
struct AttentionScores {
  double scale = 1;
  double softcap = 0;
  int64_t window = 0;
  Tensor first_key = {};

  // Whether the scale is all there is.
  bool plain() const { return softcap == 0 && window == 0 && !first_key.defined(); }
};
// For heads of d numbers. Throws ArgumentError for numbers that are negative or not finite, and
// unless first_key is undefined or an i32 [batches, queries] on `device`; on the CPU also where its
// values are not as CausalAttentionOptions asks, for queries that are the last of `keys` positions.
// `op` names the caller in errors.
AttentionScores MakeAttentionScores(const char* op, const ops::CausalAttentionOptions& options,
                                    int64_t d, int64_t batches, int64_t queries, int64_t keys,
                                    Device device);

// ---- The low-level operations. ----

// Query, key and value tensors and their gradients may be strided views (of a joint qkv), except in
// their last dimension. H query heads, G key heads. The queries are those of the last S <= T
// positions.
struct AttentionForwardArgs {
  Tensor q;     // [B, S, H, D]
  Tensor k, v;  // [B, T, G, D]
  AttentionScores scores;
  AttentionDropout dropout;
  Tensor y;            // [B, S, H, D], written
  Tensor log_sum_exp;  // [B, H, S] f32 (f64 for f64), written
};
inline constinit Slot<void(const AttentionForwardArgs&)> attention_forward{"attention_forward"};

// Gradients of all three inputs at once: they share their tiles.
struct AttentionBackwardArgs {
  Tensor q, k, v;
  AttentionScores scores;
  AttentionDropout dropout;
  Tensor y, log_sum_exp;
  Tensor dy;                                                              // [B, S, H, D]
  Tensor dq, dk, dv;                                                      // as q, k, v; written
  bool accumulate_q = false, accumulate_k = false, accumulate_v = false;  // += instead of =
};
inline constinit Slot<void(const AttentionBackwardArgs&)> attention_backward{"attention_backward"};

}  // namespace lockstep
