#include "dist/pipeline/stage_cut.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "core/error.h"
#include "optim/norm_parts.h"

namespace lockstep::dist {
namespace {

class StageExchange : public optim::NormParts {
 public:
  explicit StageExchange(std::shared_ptr<ProcessGroup> ranks) : ranks_(std::move(ranks)) {}

  void SetOwner(const Parameter& parameter, int rank) { owner_[&parameter] = rank; }

  Tensor Gather(const Parameter& parameter, const Tensor& part) override {
    const int owner = owner_.at(&parameter);
    const Tensor whole = owner == ranks_->rank() ? part.Detach().Contiguous()
                                                 : Tensor::Empty(parameter.logical_shape(),
                                                                 part.dtype(), part.device());
    ranks_->Broadcast(whole, owner, parameter.name())->Wait();
    return whole;
  }
  void Sum(const Tensor& values) override {
    ranks_->AllReduce(values, ReduceOp::kSum, "the gradients' norm")->Wait();
  }
  Parts PartsOf(const Parameter& parameter) const override {
    return {.own = owner_.at(&parameter) == ranks_->rank() ? 1 : 0};
  }
  Tensor PartOf(const Parameter&, const Tensor& grad, int64_t) const override { return grad; }

 private:
  const std::shared_ptr<ProcessGroup> ranks_;
  std::unordered_map<const Parameter*, int> owner_;
};

// Descending costs of the stages of a cut.
using Load = std::vector<double>;

}  // namespace

std::vector<int64_t> CutByCost(std::span<const double> costs, int stages) {
  const auto parts = static_cast<int64_t>(costs.size());
  LS_CHECK(stages >= 1 && stages <= parts, "a model of ", parts, " parts cannot be cut into ",
           stages, " stages: each needs a part of its own");
  for (const double cost : costs) LS_CHECK(cost >= 0, "a part's cost is ", cost);
  struct Best {
    Load load;
    std::vector<int64_t> cut;
  };
  // Of the first `end` parts, cut into the number of stages considered so far.
  std::vector<Best> best(costs.size() + 1);
  best[0].cut = {0};
  for (int s = 1; s <= stages; ++s) {
    std::vector<Best> next(costs.size() + 1);
    for (int64_t end = s; end <= parts; ++end) {
      double cost = 0;
      for (int64_t begin = end - 1; begin >= s - 1; --begin) {
        cost += costs[static_cast<size_t>(begin)];
        const Best& before = best[static_cast<size_t>(begin)];
        if (before.cut.empty()) continue;
        Load load = before.load;
        load.insert(std::lower_bound(load.begin(), load.end(), cost, std::greater<>()), cost);
        Best& to = next[static_cast<size_t>(end)];
        if (!to.cut.empty() && to.load <= load) continue;
        to.load = std::move(load);
        to.cut = before.cut;
        to.cut.push_back(end);
      }
    }
    best = std::move(next);
  }
  return best.back().cut;
}

void PlaceParameters(std::shared_ptr<ProcessGroup> ranks,
                     std::span<const std::shared_ptr<Parameter>> parameters,
                     std::span<const int> rank_of, std::span<const int> copy_of) {
  LS_CHECK(
      parameters.size() == rank_of.size() && (copy_of.empty() || copy_of.size() == rank_of.size()),
      parameters.size(), " parameters, and ranks for ", rank_of.size(), " and ", copy_of.size());
  const int rank = ranks->rank();
  const auto exchange = std::make_shared<StageExchange>(std::move(ranks));
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = *parameters[i];
    exchange->SetOwner(p, rank_of[i]);
    ShardLayout layout;
    const bool here = rank_of[i] == rank || (!copy_of.empty() && copy_of[i] == rank);
    if (!here) layout.range = ShardRange{"pp", 0, 0};
    p.SetLayout(std::move(layout), exchange);
  }
}

}  // namespace lockstep::dist
