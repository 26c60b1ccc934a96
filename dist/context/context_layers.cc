#include "dist/context/context_layers.h"

#include <functional>

#include "dist/tensor/parallel_linear.h"
#include "dist/tensor/sequence.h"
#include "dist/tensor/vocabulary.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

namespace lockstep::dist {
namespace {

using Copies = std::vector<std::vector<Tensor>>;

// f(j) for each of the own chunks, concatenated along dimension 0.
Tensor Below(const ContextRanks& ranks, const std::function<Tensor(size_t j)>& f) {
  std::vector<Tensor> chunks;
  for (int64_t j = 0; j < ranks.own(); ++j) chunks.push_back(f(static_cast<size_t>(j)));
  return Joined(chunks, 0);
}

Tensor ValueOf(const std::shared_ptr<Parameter>& parameter) {
  return parameter ? parameter->value() : Tensor();
}

}  // namespace

ContextLinear::ContextLinear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias,
                             Activation activation, ContextRanksPtr ranks,
                             std::vector<int64_t> segments, TensorRanksPtr within)
    : ranks_(std::move(ranks)),
      within_(std::move(within)),
      segments_(std::move(segments)),
      activation_(activation),
      weight_(std::move(weight)),
      bias_(std::move(bias)) {
  ShareParameter("weight", weight_);
  if (bias_) ShareParameter("bias", bias_);
}

Tensor ContextLinear::Product(const Tensor& x, const Tensor& weight, const Tensor& bias) const {
  return within_ ? ColumnProduct(within_, x, weight, bias, activation_, segments_)
                 : ops::Linear(x, weight, bias, activation_);
}

Tensor ContextLinear::Forward(const Tensor& x) {
  if (!GradEnabled()) return Product(x, *weight_, ValueOf(bias_));
  const Copies copies = FanOut(ranks_, {*weight_, ValueOf(bias_)});
  const std::vector<Tensor> chunks = x.Chunk(ranks_->own(), 0);
  return Below(*ranks_, [&](size_t j) { return Product(chunks[j], copies[0][j], copies[1][j]); });
}

ContextBranchLinear::ContextBranchLinear(std::shared_ptr<Parameter> weight,
                                         std::shared_ptr<Parameter> bias, ContextRanksPtr ranks,
                                         TensorRanksPtr within)
    : ranks_(std::move(ranks)),
      within_(std::move(within)),
      weight_(std::move(weight)),
      bias_(std::move(bias)) {
  ShareParameter("weight", weight_);
  if (bias_) ShareParameter("bias", bias_);
}

Tensor ContextBranchLinear::Product(const Tensor& x, const Tensor& weight) const {
  return within_ ? RowProduct(within_, x, weight) : ops::Linear(x, weight);
}

ops::Branch ContextBranchLinear::Forward(ops::Branch branch) {
  const Tensor x = ops::Complete(branch);
  ops::Branch y;
  if (GradEnabled()) {
    const Copies copies = FanOut(ranks_, {*weight_});
    const std::vector<Tensor> chunks = x.Chunk(ranks_->own(), 0);
    y = Below(*ranks_, [&](size_t j) { return Product(chunks[j], copies[0][j]); });
  } else {
    y = Product(x, *weight_);
  }
  if (bias_) y.bias = nn::OpenBias(*bias_);
  return y;
}

ContextEmbedding::ContextEmbedding(const nn::Embedding& replaced, ContextRanksPtr ranks)
    : Embedding(replaced.weight()),
      ranks_(std::move(ranks)),
      tensor_(dynamic_cast<const VocabularyEmbedding*>(&replaced) != nullptr
                  ? ranks_->within()
                  : std::make_shared<TensorRanks>(nullptr, 1)) {}

Tensor ContextEmbedding::AddPositions(const Tensor& ids, const Tensor& positions,
                                      int64_t first_position, const Tensor& at) {
  if (!GradEnabled()) {
    return VocabularyRows(tensor_, ids, *weight(), num(), positions, first_position, at);
  }
  const std::vector<Tensor> own = ranks_->Cut(ids);
  const std::vector<Tensor> own_at =
      at.defined() ? ranks_->Cut(at) : std::vector<Tensor>(own.size());
  const Copies copies = FanOut(ranks_, {*weight(), positions});
  return Below(*ranks_, [&](size_t j) {
    const int64_t first = first_position + ranks_->PartAt(static_cast<int64_t>(j)) * own[j].dim(1);
    return VocabularyRows(tensor_, own[j], copies[0][j], num(), copies[1][j], first, own_at[j]);
  });
}

Tensor ContextEmbedding::Forward(const Tensor& ids) {
  if (!GradEnabled()) return VocabularyRows(tensor_, ids, *weight(), num());
  const std::vector<Tensor> own = ranks_->Cut(ids);
  const Copies copies = FanOut(ranks_, {*weight()});
  return Below(*ranks_,
               [&](size_t j) { return VocabularyRows(tensor_, own[j], copies[0][j], num()); });
}

ContextHead::ContextHead(std::shared_ptr<Parameter> weight, std::shared_ptr<nn::TiedWeight> tied,
                         int64_t loss_chunk, double softcap, double z_loss, ContextRanksPtr ranks)
    : ranks_(std::move(ranks)),
      weight_(std::move(weight)),
      tied_(std::move(tied)),
      loss_chunk_(loss_chunk),
      softcap_(softcap),
      z_loss_(z_loss) {
  ShareParameter("weight", weight_);
}

Tensor ContextHead::Loss(const Tensor& x, const Tensor& weight, const Tensor& targets) const {
  const TensorRanksPtr within = ranks_->within();
  const double z_loss = GradEnabled() ? z_loss_ : 0;
  return within ? VocabularyCrossEntropy(within, x, weight, weight_->logical_shape()[0], targets,
                                         loss_chunk_, -1, softcap_, z_loss)
                : ops::LinearCrossEntropy(x, weight, targets, Reduction::kSum, loss_chunk_, -1,
                                          softcap_, z_loss);
}

Tensor ContextHead::Forward(const Tensor& x, const Tensor& targets) {
  const Tensor whole = tied_ ? tied_->value() : weight_->value();
  if (!GradEnabled()) {
    if (targets.defined()) return Loss(x, whole, targets);
    return ranks_->within() ? VocabularyLogits(*ranks_->within(), x, whole,
                                               weight_->logical_shape()[0], softcap_)
                            : ops::CappedLogits(x, whole, softcap_);
  }
  LS_CHECK(targets.defined(),
           "the head of a context-parallel model gives logits only under NoGrad: give it targets, "
           "whose loss it computes from this rank's chunks");
  const std::vector<Tensor> own = ranks_->Cut(targets), chunks = x.Chunk(ranks_->own(), 0);
  const Copies copies = FanOut(ranks_, {whole});
  std::vector<Tensor> losses;
  for (size_t j = 0; j < own.size(); ++j) {
    losses.push_back(Loss(chunks[j], copies[0][j], own[j]));
  }
  return SumParts(*ranks_, losses);
}

}  // namespace lockstep::dist
