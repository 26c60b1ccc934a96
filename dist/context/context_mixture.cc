#include "dist/context/context_mixture.h"

#include <algorithm>
#include <utility>

#include "core/autograd/node.h"
#include "dist/tensor/sequence.h"
#include "dist/tensor/tensor_experts.h"
#include "kernels/binary/binary.h"
#include "kernels/router_loss/router_loss.h"

namespace lockstep::dist {
namespace {

using Parameters = std::vector<std::shared_ptr<Parameter>>;

// Frozen ones need no copies, which are for gradients.
Parameters Trainable(Parameters parameters) {
  std::erase_if(parameters, [](const auto& p) { return !p->trainable(); });
  return parameters;
}

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

// [weight][rank of those that split the experts][chunk of the rank]
using ExpertCopies = std::vector<std::vector<std::vector<Tensor>>>;

// Lets split experts read copies of their weights for the ranks' j-th chunks.
class Reading {
 public:
  Reading(DistributedExperts* experts, const Parameters& weights, const ExpertCopies& copies,
          size_t j)
      : experts_(experts) {
    DistributedExperts::Copies of_weights;
    for (size_t w = 0; w < copies.size(); ++w) {
      std::vector<Tensor>& of_ranks = of_weights[weights[w].get()];
      for (const auto& chunks : copies[w]) of_ranks.push_back(chunks[j]);
    }
    if (experts_) experts_->Read(std::move(of_weights));
  }
  ~Reading() {
    if (experts_) experts_->Read({});
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  DistributedExperts* const experts_;
};

// The i-th of n that the fixed order adds in adjacent pairs: n is a power of two, whose bits it
// reverses.
int64_t InFixedOrder(int64_t i, int64_t n) {
  return n == 1 ? 0 : i % 2 * (n / 2) + InFixedOrder(i / 2, n / 2);
}

class ContextMixture {
 public:
  // `parameters`: all except those of `distributed` experts, null if there are none.
  ContextMixture(nn::ExpertRouter& router, Parameters parameters, ContextRanksPtr ranks,
                 std::shared_ptr<DistributedExperts> distributed, TensorRanksPtr same)
      : router_(router),
        parameters_(Trainable(std::move(parameters))),
        ranks_(std::move(ranks)),
        distributed_(std::move(distributed)),
        weights_of_experts_(distributed_ ? Trainable(distributed_->weights()) : Parameters()),
        same_(std::move(same)) {
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
    const auto copies =
        values.empty() ? std::vector<std::vector<Tensor>>() : FanOut(ranks_, values);
    const ExpertCopies of_experts = distributed_ ? FanOutExperts() : ExpertCopies();
    const std::vector<Tensor> chunks = x.Chunk(ranks_->own(), 0);
    for (size_t j = 0; j < chunks.size(); ++j) {
      const Showing showing(parameters_, copies, j);
      const Reading reading(distributed_.get(), weights_of_experts_, of_experts, j);
      ys.push_back(routed(chunks[j]));
    }
    // A forward that runs again only has for backward what the first one has as well.
    if (!Recomputing()) JoinLoads();
    return Joined(ys, 0);
  }

 private:
  // Rows come from several sequences, and of each from all ranks of the run that computes it.
  ExpertCopies FanOutExperts() const {
    const int64_t of_sequence = distributed_->of_sequence(), n = distributed_->size() / of_sequence;
    std::vector<Tensor> values;
    for (const auto& p : weights_of_experts_) values.push_back(p->value());
    if (values.empty()) return {};
    std::vector<std::vector<Tensor>> of_sequences;
    if (n > 1) of_sequences = FanOut(std::make_shared<const TensorRanks>(nullptr, n), values);
    const int64_t own = ranks_->own();
    ExpertCopies copies(values.size());
    for (int64_t s = 0; s < n; ++s) {
      const auto at = static_cast<size_t>(InFixedOrder(s, n));
      for (size_t w = 0; w < of_sequences.size(); ++w) values[w] = of_sequences[w][at];
      const auto of_chunks = FanOut(same_, values);
      for (size_t weight = 0; weight < copies.size(); ++weight) {
        for (int64_t r = 0; r < of_sequence; ++r) {
          const auto first = of_chunks[weight].begin() + r * own;
          copies[weight].emplace_back(first, first + own);
        }
      }
    }
    return copies;
  }

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
    // The weights are not saved: JoinLoads writes to them.
    RecordOp("chunk_router_loss", {&logits}, {&loss}, {{input, "the logits of a router's loss"}},
             [options, weights](const SavedTensors& saved, Gradients& grads) {
               const Tensor logits = saved[0];
               const auto [dlogits, accumulate] = grads.Open(0);
               router_loss_backward(
                   CurrentStream(dlogits.device()),
                   {options, logits, weights, grads[0].Contiguous(), dlogits, accumulate});
             });
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
    if (!ranks_->leaves_gradients_to_reducer()) {
      counted = ranks_->GatherChunks(offsets_, "loads of experts").Chunk(chunks, 1);
    }
    for (const Tensor& offsets : counted) {
      router_.CountLoad({.offsets = offsets.Contiguous().View({offsets.numel()})});
    }
  }

  nn::ExpertRouter& router_;
  const Parameters parameters_;
  const ContextRanksPtr ranks_;
  const std::shared_ptr<DistributedExperts> distributed_;
  const Parameters weights_of_experts_;
  const TensorRanksPtr same_;
  std::vector<Tensor> weights_, offsets_;  // of this forward's chunks
};

}  // namespace

Parameters RouteChunks(nn::MixtureOfExperts& mixture, const ContextRanksPtr& ranks,
                       const TensorRanksPtr& same) {
  auto* const router = dynamic_cast<nn::ExpertRouter*>(mixture.router().module().get());
  std::shared_ptr<Module> experts = mixture.experts().module();
  if (auto* const tensor = dynamic_cast<TensorExperts*>(experts.get())) {
    experts = tensor->own().module();
  }
  auto distributed = std::dynamic_pointer_cast<DistributedExperts>(experts);
  LS_CHECK(
      router != nullptr && (distributed || dynamic_cast<nn::Experts*>(experts.get()) != nullptr),
      "context parallelism: a mixture's router is not an nn::ExpertRouter, or its experts are not "
      "nn::Experts, and only these can take chunks of sequences: leave parallel.cp and virtual.cp "
      "out");
  RefuseDropoutOfExperts(*experts);
  Parameters parameters = router->Parameters(), all = parameters;
  for (auto& p : experts->Parameters()) (distributed ? all : parameters).push_back(p);
  if (!distributed) all = parameters;
  const auto of_chunks =
      std::make_shared<ContextMixture>(*router, std::move(parameters), ranks, distributed, same);
  mixture.SetChunks([of_chunks](const Tensor& x, const nn::MixtureOfExperts::Map& routed) {
    return of_chunks->Forward(x, routed);
  });
  return all;
}

TensorRanksPtr WithSameExperts(const ContextRanks& ranks, const DistributedExperts& experts) {
  LS_CHECK(!ranks.leaves_gradients_to_reducer(),
           "context parallelism: the gradients of experts that are split across ranks cannot be "
           "left to the sum over data-parallel ranks: use ContextRanks that sum them");
  struct Same {
    Same(std::shared_ptr<ProcessGroup> with, int64_t parts)
        : group(std::move(with)), ranks(group.get(), parts) {}
    std::shared_ptr<ProcessGroup> group;  // outlives the ranks
    TensorRanks ranks;
  };
  ProcessGroup* const all = ranks.group();
  const int64_t sharing = experts.of_sequence();
  const std::vector<int>& members = experts.group().members();
  const int64_t both = all == nullptr ? 1 : std::ranges::count_if(all->members(), [&](int rank) {
    return std::ranges::binary_search(members, rank);
  });
  LS_CHECK(both == sharing, "context parallelism: of the ", members.size(),
           " ranks that split the experts, ", both,
           " compute this rank's sequences together, and ShareExperts was told of ", sharing,
           ": give it the group of these ranks, as in ShareExperts(model, experts, sequence)");
  std::shared_ptr<ProcessGroup> group;
  if (all != nullptr && sharing < all->size()) {
    group = all->Split(all->name() + ".same_experts", EveryNth(*all, sharing));
  }
  auto same = std::make_shared<const Same>(std::move(group), ranks.chunks());
  return {same, &same->ranks};
}

}  // namespace lockstep::dist
