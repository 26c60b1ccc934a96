// Layers that compute a rank's chunks of a sequence one by one, for the gradients of their weights.
#pragma once

#include "dist/context/context_ranks.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/lm_head.h"

namespace lockstep::dist {

// Under NoGrad all of these do what they replaced did, with whole sequences. Norms and dropouts of
// the residual stream are SequenceNorms and SequenceDropouts (dist/tensor/sequence.h), norms of
// queries and keys HeadNorms. With ranks within (ContextRanks), each chunk is a sequence to the
// layers of dist/tensor, whose shapes it has.

// In the place of an nn::Linear or a ColumnLinear: x [own() B, T / chunks, K], the chunks
// concatenated along dimension 0, to y of [own() B, T / chunks, N]: a product of its own for each
// chunk, so that its sizes do not depend on ranks.
class ContextLinear : public Layer {
 public:
  // With the parameters of the layer, of which `bias` may be null. For a ColumnLinear: its
  // `segments`, and the ranks that compute it together, ContextRanks::within.
  ContextLinear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias,
                Activation activation, ContextRanksPtr ranks, std::vector<int64_t> segments = {},
                TensorRanksPtr within = nullptr);

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  Tensor Product(const Tensor& x, const Tensor& weight, const Tensor& bias) const;

  const ContextRanksPtr ranks_;
  const TensorRanksPtr within_;
  const std::vector<int64_t> segments_;
  const Activation activation_;
  const std::shared_ptr<Parameter> weight_, bias_;
};

// In the place of an nn::BranchLinear or a RowLinear, the same. The bias stays open: the norm that
// adds it sums its gradient.
class ContextBranchLinear : public nn::BranchLayer {
 public:
  // `within`: of a RowLinear.
  ContextBranchLinear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias,
                      ContextRanksPtr ranks, TensorRanksPtr within = nullptr);

 protected:
  ops::Branch Forward(ops::Branch x) override;

 private:
  Tensor Product(const Tensor& x, const Tensor& weight) const;

  const ContextRanksPtr ranks_;
  const TensorRanksPtr within_;
  const std::shared_ptr<Parameter> weight_, bias_;
};

// In the place of an nn::Embedding, such as a VocabularyEmbedding: ids [B, T], whole on every rank,
// to its chunks [own() B, T / chunks, dim], with the positions that they have in the sequence.
class ContextEmbedding : public nn::Embedding {
 public:
  ContextEmbedding(const nn::Embedding& replaced, ContextRanksPtr ranks);

  Tensor AddPositions(const Tensor& ids, const Tensor& positions, int64_t first_position,
                      const Tensor& at = {}) override;

 protected:
  Tensor Forward(const Tensor& ids) override;

 private:
  const ContextRanksPtr ranks_;
  const TensorRanksPtr tensor_;  // that split the rows, or one
};

// In the place of an nn::LmHead or a VocabularyHead: x [own() B, T / chunks, C], and targets [B,
// T], whole on every rank, to the loss of all chunks, the same on every rank; where these are
// apart, of this rank's. Gives logits only under NoGrad.
class ContextHead : public nn::LmHeadLayer, public nn::ReadsTiedWeight {
 public:
  // `tied`: null if the weight is the head's own.
  ContextHead(std::shared_ptr<Parameter> weight, std::shared_ptr<nn::TiedWeight> tied,
              int64_t loss_chunk, double softcap, double z_loss, ContextRanksPtr ranks);

  std::shared_ptr<nn::TiedWeight> tied() const override { return tied_; }

 protected:
  Tensor Forward(const Tensor& x, const Tensor& targets) override;

 private:
  Tensor Loss(const Tensor& x, const Tensor& weight, const Tensor& targets) const;

  const ContextRanksPtr ranks_;
  const std::shared_ptr<Parameter> weight_;
  const std::shared_ptr<nn::TiedWeight> tied_;
  const int64_t loss_chunk_;
  const double softcap_, z_loss_;
};

}  // namespace lockstep::dist
