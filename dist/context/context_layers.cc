#include "dist/context/context_layers.h"

#include <functional>

#include "core/autograd/node.h"
#include "core/step_state.h"
#include "dist/tensor/sequence.h"
#include "kernels/concat/concat.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "kernels/token_position_embedding/token_position_embedding.h"

namespace lockstep::dist {
namespace {

using Copies = std::vector<std::vector<Tensor>>;

// f(j) for each of the own chunks, below each other.
Tensor Below(const ContextRanks& ranks, const std::function<Tensor(size_t j)>& f) {
  std::vector<Tensor> chunks;
  for (int64_t j = 0; j < ranks.own(); ++j) chunks.push_back(f(static_cast<size_t>(j)));
  return chunks.size() == 1 ? chunks[0] : ops::Concat(chunks, 0);
}

Tensor ValueOf(const std::shared_ptr<Parameter>& parameter) {
  return parameter ? parameter->value() : Tensor();
}

// The sum of the losses of all chunks, in the order of every sum over them.
class LossSumNode : public Node {
 public:
  explicit LossSumNode(size_t chunks) : Node("context_loss"), chunks_(chunks) {}
  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    for (size_t j = 0; j < chunks_; ++j) {
      if (needs[j]) sinks[j].Put(grads[0]);
    }
  }
  void Release() override {}

 private:
  const size_t chunks_;
};

Tensor SumLosses(const ContextRanks& ranks, const std::vector<Tensor>& losses) {
  const Tensor own =
      ranks.SumOwn([&](int64_t j) { return losses[static_cast<size_t>(j)].Detach().Clone(); });
  Tensor total = ranks.Sum(own.View({1}), own.dtype()).View({});
  std::vector<const Tensor*> edges;
  for (const Tensor& loss : losses) edges.push_back(&loss);
  const std::array<Tensor*, 1> outputs = {&total};
  if (NeedsGrad(edges)) Record(std::make_shared<LossSumNode>(losses.size()), edges, outputs);
  return total;
}

}  // namespace

ContextLinear::ContextLinear(const nn::Linear& replaced, ContextRanksPtr ranks)
    : ranks_(std::move(ranks)),
      activation_(replaced.activation()),
      weight_(replaced.weight()),
      bias_(replaced.bias()) {
  ShareParameter("weight", weight_);
  if (bias_) ShareParameter("bias", bias_);
}

Tensor ContextLinear::Forward(const Tensor& x) {
  if (!GradEnabled()) return ops::Linear(x, *weight_, ValueOf(bias_), activation_);
  const Copies copies = FanOut(ranks_, {*weight_, ValueOf(bias_)});
  const std::vector<Tensor> chunks = x.Chunk(ranks_->own(), 0);
  return Below(*ranks_, [&](size_t j) {
    return ops::Linear(chunks[j], copies[0][j], copies[1][j], activation_);
  });
}

ContextBranchLinear::ContextBranchLinear(const nn::BranchLinear& replaced, ContextRanksPtr ranks)
    : ranks_(std::move(ranks)), weight_(replaced.weight()), bias_(replaced.bias()) {
  ShareParameter("weight", weight_);
  if (bias_) ShareParameter("bias", bias_);
}

ops::Branch ContextBranchLinear::Forward(ops::Branch branch) {
  const Tensor x = ops::Complete(branch);
  ops::Branch y;
  if (GradEnabled()) {
    const Copies copies = FanOut(ranks_, {*weight_});
    const std::vector<Tensor> chunks = x.Chunk(ranks_->own(), 0);
    y = Below(*ranks_, [&](size_t j) { return ops::Linear(chunks[j], copies[0][j]); });
  } else {
    y = ops::Linear(x, *weight_);
  }
  if (bias_) y.bias = nn::OpenBias(*bias_);
  return y;
}

ContextEmbedding::ContextEmbedding(const nn::Embedding& replaced, ContextRanksPtr ranks)
    : Embedding(replaced.weight()), ranks_(std::move(ranks)) {}

Tensor ContextEmbedding::AddPositions(const Tensor& ids, const Tensor& positions,
                                      int64_t first_position) {
  if (!GradEnabled()) return Embedding::AddPositions(ids, positions, first_position);
  const std::vector<Tensor> own = ranks_->Cut(ids);
  const Copies copies = FanOut(ranks_, {*weight(), positions});
  return Below(*ranks_, [&](size_t j) {
    const int64_t first = first_position + ranks_->PartAt(static_cast<int64_t>(j)) * own[j].dim(1);
    return ops::TokenPositionEmbedding(own[j], copies[0][j], copies[1][j], first);
  });
}

Tensor ContextEmbedding::Forward(const Tensor& ids) {
  if (!GradEnabled()) return Embedding::Forward(ids);
  const std::vector<Tensor> own = ranks_->Cut(ids);
  const Copies copies = FanOut(ranks_, {*weight()});
  return Below(*ranks_, [&](size_t j) { return ops::Embedding(own[j], copies[0][j]); });
}

ContextDropout::ContextDropout(const nn::Dropout& replaced, ContextRanksPtr ranks)
    : ranks_(std::move(ranks)), p_(replaced.p()) {}

Tensor ContextDropout::Forward(const Tensor& x) {
  if (p_ == 0 || CurrentStepState() == nullptr) return x;
  const uint64_t site = nn::RandomSite(path());
  if (!GradEnabled()) return ops::Dropout(x, p_, site);
  const int64_t elements = x.dim(1) * x.dim(2);  // of a sample, in a chunk
  const std::vector<Tensor> chunks = x.Chunk(ranks_->own(), 0);
  return Below(*ranks_, [&](size_t j) {
    return ops::Dropout(chunks[j], p_, site,
                        {.begin = ranks_->PartAt(static_cast<int64_t>(j)) * elements,
                         .of = ranks_->chunks() * elements});
  });
}

ContextHead::ContextHead(const nn::LmHead& replaced, ContextRanksPtr ranks)
    : ranks_(std::move(ranks)),
      loss_chunk_(replaced.loss_chunk()),
      weight_(replaced.weight()),
      tied_(replaced.tied()) {
  ShareParameter("weight", weight_);
}

Tensor ContextHead::Forward(const Tensor& x, const Tensor& targets) {
  const Tensor whole = tied_ ? tied_->value() : weight_->value();
  const auto loss = [&](const Tensor& chunk, const Tensor& weight, const Tensor& of) {
    return ops::LinearCrossEntropy(chunk, weight, of, Reduction::kSum, loss_chunk_);
  };
  if (!GradEnabled()) {
    return targets.defined() ? loss(x, whole, targets) : ops::Linear(x, whole);
  }
  LS_CHECK(targets.defined(),
           "the head of a context-parallel model gives logits only under NoGrad: give it targets, "
           "whose loss it computes from this rank's chunks");
  const std::vector<Tensor> own = ranks_->Cut(targets), chunks = x.Chunk(ranks_->own(), 0);
  const Copies copies = FanOut(ranks_, {whole});
  std::vector<Tensor> losses;
  for (size_t j = 0; j < own.size(); ++j) {
    losses.push_back(loss(chunks[j], copies[0][j], own[j]));
  }
  return SumLosses(*ranks_, losses);
}

}  // namespace lockstep::dist
