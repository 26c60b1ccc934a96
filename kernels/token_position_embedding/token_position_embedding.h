// A GPT's first layer: token embedding plus learned position embedding, in one pass.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y[b, t, :] = wte[ids[b, t], :] + wpe[first_position + t, :], or wpe[positions[b, t], :] if
// positions, i32 [B, T], are given, as where documents are packed one after another into a row and
// each begins at 0. ids: [B, T], i32 or i64; wte: [V,
// C]; wpe: [P, C] of the same floating dtype; y: [B, T, C], summed in f32 or wider and rounded
// once. Throws ArgumentError if first_position + T > P, or for an id outside [0, V) or a position
// outside [0, P). Saves ids and positions.
//
// Gradients as in ops::Embedding; that of a position is summed over the batch, and with positions
// over its places in each row, in ascending order.
Tensor TokenPositionEmbedding(const Tensor& ids, const Tensor& wte, const Tensor& wpe,
                              int64_t first_position = 0, const Tensor& positions = {});

}  // namespace ops

// positions: contiguous, or undefined.
inline constinit Slot<void(const Tensor& ids, const Tensor& wte, const Tensor& wpe,
                           int64_t first_position, const Tensor& positions, const Tensor& y)>
    token_position_embedding_forward{"token_position_embedding_forward"};
// The gradient of wpe without positions; that of wte, and of wpe with positions, is
// embedding_backward. dwpe (any floating dtype) is overwritten
// in full, or added to.
inline constinit Slot<void(const Tensor& dy, int64_t first_position, const Tensor& dwpe,
                           bool accumulate)>
    token_position_embedding_backward{"token_position_embedding_backward"};

}  // namespace lockstep
