// Attention whose heads are split across ranks, several of which may need the same keys and values.
#pragma once

#include "dist/tensor/tensor_ranks.h"
#include "nn/attention/causal_self_attention.h"

namespace lockstep::dist {

// How many neighbouring equal parts of the heads have one key head: 1 unless the parts into which
// `parts` parts of the layer divide n_head heads are a multiple of n_kv_head.
int64_t KeyCopies(int64_t n_head, int64_t n_kv_head, int64_t parts);

// From now on the attention computes this rank's equal part of the heads. Where there are more
// parts of the heads than key heads (KeyCopies), c_attn's rows are cut all the same, and its keys
// and values brought together: each part has a copy of its key head. So the gradient of a key head
// is the sum over its copies, each rounded to its dtype, in adjacent pairs in f32 at least; it is
// what ranks add who have copies, and what a single one adds that has all. Throws ArgumentError
// unless the ranks divide n_head, and either divide n_kv_head or are a multiple of it.
void ShareHeads(nn::CausalSelfAttention& attention, const TensorRanksPtr& ranks);

// Takes the output of this rank's part of c_attn, [B, T, (H + 2 G) D / size], with n_head = H and
// n_kv_head = G of the whole layer, and returns [B, T, (H + 2 G copies) D / size], queries, keys
// and values. Collective if the ranks have parts of key heads; in backward as well.
Tensor CopyKeys(const TensorRanksPtr& ranks, const Tensor& qkv, int64_t n_head, int64_t n_kv_head,
                int64_t copies);

}  // namespace lockstep::dist
