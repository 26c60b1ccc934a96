// Layers that compute a rank's chunks of a sequence one by one, for the gradients of their weights.
#pragma once

#include "dist/context/context_ranks.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/lm_head.h"

namespace lockstep::dist {

// Under NoGrad all of these do what they replaced did, with whole sequences. Norms of the residual
// stream are SequenceNorms (dist/tensor/sequence.h), those of queries and keys HeadNorms.

// In the place of an nn::Linear: x [own() B, T / chunks, K], the chunks below each other, to y of
// [own() B, T / chunks, N]: a product of its own for each chunk, so that its sizes do not depend on
// ranks.
class ContextLinear : public Layer {
 public:
  ContextLinear(const nn::Linear& replaced, ContextRanksPtr ranks);

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  const ContextRanksPtr ranks_;
  const Activation activation_;
  std::shared_ptr<Parameter> weight_, bias_;
};

// In the place of an nn::BranchLinear, the same. The bias stays open: the norm that adds it sums
// its gradient.
class ContextBranchLinear : public nn::BranchLayer {
 public:
  ContextBranchLinear(const nn::BranchLinear& replaced, ContextRanksPtr ranks);

 protected:
  ops::Branch Forward(ops::Branch x) override;

 private:
  const ContextRanksPtr ranks_;
  std::shared_ptr<Parameter> weight_, bias_;
};

// In the place of an nn::Embedding: ids [B, T], whole on every rank, to its chunks [own() B, T /
// chunks, dim], with the positions that they have in the sequence.
class ContextEmbedding : public nn::Embedding {
 public:
  ContextEmbedding(const nn::Embedding& replaced, ContextRanksPtr ranks);

  Tensor AddPositions(const Tensor& ids, const Tensor& positions, int64_t first_position) override;

 protected:
  Tensor Forward(const Tensor& ids) override;

 private:
  const ContextRanksPtr ranks_;
};

// In the place of an nn::Dropout, with the mask that the whole sequence has at the chunks.
class ContextDropout : public Layer {
 public:
  ContextDropout(const nn::Dropout& replaced, ContextRanksPtr ranks);

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  const ContextRanksPtr ranks_;
  const double p_;
};

// In the place of an nn::LmHead: x [own() B, T / chunks, C], and targets [B, T], whole on every
// rank, to the loss of all chunks, the same on every rank; where these are apart, of this rank's.
// Gives logits only under NoGrad.
class ContextHead : public nn::LmHeadLayer, public nn::ReadsTiedWeight {
 public:
  ContextHead(const nn::LmHead& replaced, ContextRanksPtr ranks);

  std::shared_ptr<nn::TiedWeight> tied() const override { return tied_; }

 protected:
  Tensor Forward(const Tensor& x, const Tensor& targets) override;

 private:
  const ContextRanksPtr ranks_;
  const int64_t loss_chunk_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<nn::TiedWeight> tied_;  // null: the weight is its own
};

}  // namespace lockstep::dist
