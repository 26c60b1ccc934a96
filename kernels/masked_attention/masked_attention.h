// Attention with any mask, and from one sequence to another.
#pragma once

#include <cstdint>
#include <optional>

#include "core/tensor.h"

namespace lockstep::ops {

struct AttentionOptions {
  // Which keys a query sees, or what is added to its scores. Undefined, or broadcast to
  // [B, H, S, T]: bool, true where it sees the key; or floating, with a gradient where it needs one
  // (-infinity hides a key; a query for which all are hidden so gets NaN). With three dimensions it
  // must be [1, S, T]: a mask per sequence is [B, 1, S, T], one per head [1, H, S, T]. [S, T] is
  // for all.
  Tensor mask{};
  // Queries are those of the last S <= T positions, and see their own key and those before it.
  bool causal = false;
  std::optional<double> scale{};  // of the scores; where empty: 1 / sqrt(D)
  // Zeroes probabilities in a TrainingScope, as ops::Dropout with this site.
  double dropout = 0;
  uint64_t site = 0;
};

// y_i = sum_j softmax_j(scale q_i . k_j + mask_ij) v_j for each head. q [B, S, H, D], k [B, T, G,
// D], v [B, T, G, E]; y [B, S, H, E], contiguous. T > 0; H is a multiple of G: query head h uses
// key head h / (H / G). All of the same floating dtype and device, any strides; heads come after
// positions, as in ops::CausalAttention (in torch's they come before: Transpose(1, 2)). A query
// that a bool mask, or causal, lets see no key gets 0, without gradient.
//
// Composed of MatMul, Softmax and Where: the scores [B, H, S, T] are in memory, several times in
// training. 16-bit inputs are multiplied in f32 up to the softmax, whose result is rounded.
// CausalAttention is the fused one, which stores no scores; use it where its mask is enough.
// Vaswani et al., "Attention is all you need" (2017).
Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options = {});

}  // namespace lockstep::ops
