#include "dist/context/context_mixture.h"

#include <utility>

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "dist/tensor/sequence.h"
#include "kernels/binary/binary.h"
#include "kernels/concat/concat.h"
#include "kernels/router_loss/router_loss.h"

namespace lockstep::dist {
namespace {

using Parameters = std::vector<std::shared_ptr<Parameter>>;

// Lets modules read copies of their parameters.
class Showing {
 public:
  Showing(const Parameters& parameters, const std::vector<std::vector<Tensor>>& copies, size_t j)
      : parameters_(parameters) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      before_.push_back(parameters_[p]->value());
      parameters_[p]->Show(copies[p][j]);
    }
  }
  // A FullyShard may have shown others.
  ~Showing() {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (before_[p].storage().SameBlock(parameters_[p]->part().storage())) {
        parameters_[p]->Hide();
      } else {
        parameters_[p]->Show(before_[p]);
      }
    }
  }
  Showing(const Showing&) = delete;
  Showing& operator=(const Showing&) = delete;

 private:
  const Parameters& parameters_;
  std::vector<Tensor> before_;
};

// ops::RouterLoss of a chunk, whose `weights` become those of the whole sequence before backward.
class ChunkLossNode : public Node {
 public:
  ChunkLossNode(const RouterLossOptions& options, const Tensor& logits, const Tensor& weights)
      : Node("chunk_router_loss"),
        options_(options),
        logits_(logits, "the logits of a router's loss"),
        weights_(weights) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor logits = logits_.Unpack();
    const GradSink::Target dlogits = sinks[0].Open(logits);
    router_loss_backward(
        CurrentStream(logits.device()),
        {options_, logits, weights_, grads[0].Contiguous(), dlogits.tensor, dlogits.accumulate});
  }
  void Release() override { logits_.Reset(); }

 private:
  const RouterLossOptions options_;
  SavedTensor logits_;
  const Tensor weights_;
};

class ContextMixture {
 public:
  ContextMixture(nn::ExpertRouter& router, Parameters parameters, ContextRanksPtr ranks)
      : router_(router), parameters_(std::move(parameters)), ranks_(std::move(ranks)) {
    router_.SetParts(
        {.loss = [this](
                     const Tensor& logits, const Tensor& experts,
                     const RouterLossOptions& options) { return Loss(logits, experts, options); },
         .count =
             [this](const ExpertOrder& order) {
               offsets_.push_back(order.offsets.View({1, 1, order.offsets.numel()}));
             }});
  }

  Tensor Forward(const Tensor& x, const nn::MixtureOfExperts::Map& routed) {
    weights_.clear();
    offsets_.clear();
    std::vector<Tensor> values, ys;
    for (const auto& p : parameters_) values.push_back(p->value());
    const auto copies = FanOut(ranks_, values);
    const std::vector<Tensor> chunks = x.Chunk(ranks_->own(), 0);
    for (size_t j = 0; j < chunks.size(); ++j) {
      const Showing showing(parameters_, copies, j);
      ys.push_back(routed(chunks[j]));
    }
    // A forward that runs again only has for backward what the first one has as well.
    if (!Recomputing()) JoinLoads();
    return ys.size() == 1 ? ys[0] : ops::Concat(ys, 0);
  }

 private:
  // The value is not used: only its gradient is.
  Tensor Loss(const Tensor& logits, const Tensor& experts, const RouterLossOptions& options) {
    const Tensor input = logits.Detach().Contiguous();
    const int64_t b = input.dim(0), t = input.dim(1), e = input.dim(2);
    const Tensor weights = Tensor::Empty({b, e}, input.dtype(), input.device());
    Tensor loss = Tensor::Empty({}, input.dtype(), input.device());
    router_loss_forward(
        CurrentStream(input.device()),
        {options, input, experts.Contiguous().View({b, t, experts.dim(1)}), weights, loss});
    if (options.balance > 0) weights_.push_back(weights.View({b, 1, e}));
    Record(std::make_shared<ChunkLossNode>(options, input, weights), {&logits}, {&loss});
    return loss;
  }

  // A sequence's share of choices is the mean of its chunks', which are equally long.
  void JoinLoads() {
    const int64_t chunks = ranks_->chunks();
    if (!weights_.empty()) {
      const Tensor whole = ranks_->GatherChunks(weights_, "loads of a sequence");  // [B, chunks, E]
      const Tensor sum =
          AddInPairs(chunks, [&](int64_t c) { return whole.Slice(1, c, c + 1).Clone(); });
      const Tensor share =
          Tensor::Full(sum.shape(), 1.0 / static_cast<double>(chunks), sum.dtype(), sum.device());
      const Tensor mean = ops::Mul(sum, share);
      for (const Tensor& weights : weights_) weights.CopyFrom(mean);
    }
    if (offsets_.empty()) return;
    std::vector<Tensor> counted = offsets_;
    if (!ranks_->apart()) {
      counted = ranks_->GatherChunks(offsets_, "loads of experts").Chunk(chunks, 1);
    }
    for (const Tensor& offsets : counted) {
      router_.CountLoad({.offsets = offsets.Contiguous().View({offsets.numel()})});
    }
  }

  nn::ExpertRouter& router_;
  const Parameters parameters_;
  const ContextRanksPtr ranks_;
  std::vector<Tensor> weights_, offsets_;  // of this forward's chunks
};

}  // namespace

Parameters RouteChunks(nn::MixtureOfExperts& mixture, const ContextRanksPtr& ranks) {
  auto* const router = dynamic_cast<nn::ExpertRouter*>(mixture.router().module().get());
  const auto experts = std::dynamic_pointer_cast<nn::Experts>(mixture.experts().module());
  LS_CHECK(router != nullptr && experts != nullptr,
           "context parallelism: a mixture's router is no nn::ExpertRouter, or its experts are no "
           "nn::Experts that every rank has whole: parallel.cp and virtual.cp do not go together "
           "with parallel.ep, parallel.tp or virtual.tp for a mixture");
  Parameters parameters = router->Parameters();
  for (auto& p : experts->Parameters()) parameters.push_back(std::move(p));
  const auto of_chunks = std::make_shared<ContextMixture>(*router, parameters, ranks);
  mixture.SetChunks([of_chunks](const Tensor& x, const nn::MixtureOfExperts::Map& routed) {
    return of_chunks->Forward(x, routed);
  });
  return parameters;
}

}  // namespace lockstep::dist
