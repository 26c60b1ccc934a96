// The token embedding and the output head of a language model, whose vocabulary is split across
// ranks.
#pragma once

#include "dist/tensor/tensor_ranks.h"
#include "nn/embedding.h"
#include "nn/lm_head.h"

namespace lockstep::dist {

// In the place of an nn::Embedding: a rank has a part of the rows. ids [B, T], the same on
// every rank, -> this rank's part of the sequence, [B, T / size, dim]. Each row comes from its
// owner, as it is; its gradient is summed there over the whole sequence, in order. The gradient of
// positions is each rank's own, brought together; with positions for each token, which may be in
// several parts of the sequence, every rank sums it over the whole sequence.
class VocabularyEmbedding : public nn::Embedding {
 public:
  VocabularyEmbedding(const nn::Embedding& replaced, TensorRanksPtr ranks);

  Tensor AddPositions(const Tensor& ids, const Tensor& positions, int64_t first_position,
                      const Tensor& at = {}) override;

 protected:
  Tensor Forward(const Tensor& ids) override;

 private:
  const TensorRanksPtr ranks_;
};

// In the place of an nn::LmHead: a rank has a part of the vocabulary, and its logits, which
// are never brought together for a loss. x [B, T / size, C] -> the loss, on every rank; only under
// NoGrad also logits, of the whole vocabulary.
class VocabularyHead : public nn::LmHeadLayer, public nn::ReadsTiedWeight {
 public:
  VocabularyHead(const nn::LmHead& replaced, TensorRanksPtr ranks);

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  int64_t loss_chunk() const { return loss_chunk_; }
  double softcap() const { return softcap_; }
  double z_loss() const { return z_loss_; }
  std::shared_ptr<nn::TiedWeight> tied() const override { return tied_; }

 protected:
  Tensor Forward(const Tensor& x, const Tensor& targets) override;

 private:
  const TensorRanksPtr ranks_;
  const int64_t loss_chunk_;
  const double softcap_, z_loss_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<nn::TiedWeight> tied_;  // null: the weight is its own
};

// What VocabularyEmbedding computes, of this rank's part of a vocabulary's `size` rows. positions
// may be undefined, and `at`, which is that of all of ids.
Tensor VocabularyRows(const TensorRanksPtr& ranks, const Tensor& ids, const Tensor& weight,
                      int64_t size, const Tensor& positions = {}, int64_t first_position = 0,
                      const Tensor& at = {});

// The logits [B, T, size], capped as by nn::LmHead, of x [B, T, C] and this rank's part of the
// weight. No gradient, but with one rank. Throws ArgumentError where there would be one.
Tensor VocabularyLogits(const TensorRanks& ranks, const Tensor& x, const Tensor& weight,
                        int64_t size, double softcap = 0);

// ops::LinearCrossEntropy with Reduction::kSum, of this rank's part of the sequence x [B, T /
// ranks->size(), C] and of the weight [size, C], for targets [B, T]. A row's log-sum-exp is joined
// from those of parts() parts of the vocabulary, in adjacent pairs; the gradient of x is a sum of
// as many partial products.
Tensor VocabularyCrossEntropy(const TensorRanksPtr& ranks, const Tensor& x, const Tensor& weight,
                              int64_t size, const Tensor& targets, int64_t chunk_rows,
                              int64_t ignore_index = -1, double softcap = 0, double z_loss = 0);

}  // namespace lockstep::dist
