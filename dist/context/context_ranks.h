// The ranks across which the positions of a sequence are split, and the chunks that decide its
// bits.
#pragma once

#include <memory>
#include <vector>

#include "dist/tensor/tensor_ranks.h"

namespace lockstep::dist {

// Context parallelism: each of context_size() ranks has a part of the positions of every sequence,
// all of the weights, and for attention, one layer at a time, the keys and values of all positions
// (Llama Team, "The Llama 3 herd of models", 2024, section 3.3.2). With P pairs a sequence has 2 P
// chunks of equal size. Pair k is chunk k and chunk 2 P - 1 - k, of which the one sees few keys and
// the other many: so all pairs are the same work. A rank has P / context_size() neighbouring pairs:
//
//   P = 4, on two ranks:  rank 0: chunks 0 7 1 6    rank 1: chunks 2 5 3 4
//
// Activations are [own() B, T / (2 P), ...]: the chunks of a rank in that order, each a batch of B.
//
// A sum over tokens (for a weight's gradient, for the loss) is that of the sums over the chunks,
// added in adjacent pairs in the order of the pairs' chunks. As TensorRanks with 2 P parts this
// makes the sums of all ranks, so that the bits depend on P only. Where they leave gradients to the
// reducer it makes the sums of this rank's chunks; the reducer of the data-parallel ranks adds them
// to those of the others.
//
// With tensor parallelism, the ranks `within` compute the layers of each chunk together: sums over
// their parts are made within the chunk. Activations of the residual stream are then [own() B, T /
// (2 P within->size()), C]: of each chunk, this rank's part of the tokens.
class ContextRanks : public TensorRanks {
 public:
  // A null group means a single rank; otherwise the group outlives this. Throws ArgumentError
  // unless pairs / ranks is a power of two, or there is one rank; and pairs = ranks where
  // they leave gradients to the reducer.
  ContextRanks(ProcessGroup* group, int64_t pairs, bool leaves_gradients_to_reducer = false,
               TensorRanksPtr within = nullptr);

  int context_size() const { return SizeOf(context_); }
  int context_rank() const { return RankIn(context_); }
  int64_t chunks() const { return chunks_; }
  bool leaves_gradients_to_reducer() const { return leaves_gradients_to_reducer_; }
  // Which chunk of the sequence is the j-th of a rank's.
  int64_t ChunkOf(int rank, int64_t j) const;

  int part_dim() const override { return 0; }
  int64_t PartAt(int64_t j) const override { return ChunkOf(context_rank(), j); }
  int64_t sequence_parts() const override { return chunks_; }
  TensorRanksPtr within() const override { return within_; }
  int64_t CopyStride(const Parameter& parameter) const override;

  // This rank's chunks of what all ranks have whole, [B, T, ...]: own() of [B, T / chunks, ...].
  // Throws ArgumentError if the chunks, and the parts within them, do not divide T.
  std::vector<Tensor> Cut(const Tensor& whole) const;
  // Collective. The whole [B, T, ...] of this rank's own() chunks; `what` names them in errors.
  Tensor GatherChunks(const std::vector<Tensor>& own, const char* what = "keys and values") const;
  // Collective. own()[j] is [B, n T / chunks, ...] where the rank's j-th chunk is the n-th of the
  // sequence: what it has for itself and for each chunk before it. Returns for each of this rank's
  // chunks the sum of what all chunks have for it, added in their order, f32 at least.
  std::vector<Tensor> SumForChunks(const std::vector<Tensor>& own) const;

 private:
  ProcessGroup* const context_;
  const int64_t chunks_;
  const bool leaves_gradients_to_reducer_;
  const TensorRanksPtr within_;
};

using ContextRanksPtr = std::shared_ptr<const ContextRanks>;

}  // namespace lockstep::dist
