// Attention of a rank's chunks of a sequence to all of it.
#pragma once

#include <vector>

#include "dist/context/context_ranks.h"
#include "nn/attention/causal_self_attention.h"

namespace lockstep::dist {

// ops::CausalAttention of the sequence, for this rank's chunks of it: own() qkv of [B, T / chunks,
// (H + 2 G) D], rotated already, to as many y of [B, T / chunks, H D], concatenated along dimension
// 0. Gathers the keys and values, 2 B T G D numbers that are not kept: backward gathers them again.
// A chunk's queries see the keys up to theirs in one call of attention, whose sizes do not depend
// on ranks. The gradient of keys and values is the sum of what each chunk of queries gives, rounded
// to their dtype, added in the order of chunks in f32 or wider. call.options.first_key is that of
// the whole sequence, i32 [B, T], which all ranks have.
Tensor ContextAttention(const ContextRanksPtr& ranks, const std::vector<Tensor>& qkv,
                        const nn::AttentionCall& call);

}  // namespace lockstep::dist
