// A GPT's first layer: token embedding plus learned position embedding, in one pass.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y[b, t, :] = wte[ids[b, t], :] + wpe[first_position + t, :]. ids: [B, T], i32 or i64; wte: [V,
// C]; wpe: [P, C] of the same floating dtype; y: [B, T, C], summed in f32 or wider and rounded
// once. Throws ArgumentError if first_position + T > P, or for an id outside [0, V). Saves ids.
//
// Gradients as in ops::Embedding; that of a position is summed over the batch in ascending order.
Tensor TokenPositionEmbedding(const Tensor& ids, const Tensor& wte, const Tensor& wpe,
                              int64_t first_position = 0);

}  // namespace ops

inline constinit Slot<void(const Tensor& ids, const Tensor& wte, const Tensor& wpe,
                           int64_t first_position, const Tensor& y)>
    token_position_embedding_forward{"token_position_embedding_forward"};
// The gradient of wpe; that of wte is embedding_backward. dwpe (any floating dtype) is overwritten
// in full, or added to.
inline constinit Slot<void(const Tensor& dy, int64_t first_position, const Tensor& dwpe,
                           bool accumulate)>
    token_position_embedding_backward{"token_position_embedding_backward"};

}  // namespace lockstep
