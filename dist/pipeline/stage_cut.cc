#include "dist/pipeline/stage_cut.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "dist/mesh_parts.h"

namespace lockstep::dist {
namespace {

// Which stage has a parameter, and with it all of it; of a tied weight a second one has a copy.
class StageExchange : public PartsAxis {
 public:
  explicit StageExchange(std::shared_ptr<ProcessGroup> ranks) : ranks_(std::move(ranks)) {}

  // `copy`: a second rank that has it, or -1.
  void SetRanks(const Parameter& parameter, int owner, int copy) {
    places_[&parameter] = {owner, copy};
  }

  ProcessGroup* group() const override { return ranks_.get(); }
  bool Divides(const Parameter& parameter) const override {
    return ranks_ && places_.contains(&parameter);
  }
  bool is_placement() const override { return true; }
  bool Holds(const Parameter& parameter) const override {
    if (!Divides(parameter)) return true;
    const auto [owner, copy] = places_.at(&parameter);
    return owner == ranks_->rank() || copy == ranks_->rank();
  }
  void Replace(const Parameter& parameter, const Parameter& by) override {
    if (places_.contains(&parameter)) places_[&by] = places_.at(&parameter);
  }
  std::pair<int64_t, int64_t> CopyOf(const Parameter& parameter) const override {
    if (!Divides(parameter)) return PartsAxis::CopyOf(parameter);
    const auto [owner, copy] = places_.at(&parameter);
    return {copy == ranks_->rank() ? 1 : 0, copy < 0 ? 1 : 2};
  }
  Tensor Gather(const Parameter& parameter, const Tensor& part) override {
    const int owner = places_.at(&parameter).owner;
    const Tensor whole = owner == ranks_->rank() ? part.Detach().Contiguous()
                                                 : Tensor::Empty(parameter.logical_shape(),
                                                                 part.dtype(), part.device());
    ranks_->Broadcast(whole, owner, parameter.name())->Wait();
    return whole;
  }

 private:
  struct Place {
    int owner = 0, copy = -1;
  };
  const std::shared_ptr<ProcessGroup> ranks_;
  std::unordered_map<const Parameter*, Place> places_;
};

// Descending costs of the stages of a cut.
using Load = std::vector<double>;

}  // namespace

std::vector<int64_t> CutByCost(std::span<const double> costs, int stages) {
  const auto parts = static_cast<int64_t>(costs.size());
  LS_CHECK(stages >= 1 && stages <= parts, "a model of ", parts, " parts cannot be cut into ",
           stages, " stages: each needs a part of its own");
  for (const double cost : costs) {
    LS_CHECK(cost >= 0, "the cost of a part of a model must not be negative, got ", cost);
  }
  struct Best {
    Load load;
    std::vector<int64_t> cut;
  };
  // The best cut of the first `end` parts into the number of stages considered so far.
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
      "PlaceParameters needs a rank for each of the ", parameters.size(), " parameters, got ",
      rank_of.size(), " in rank_of and ", copy_of.size(), " in copy_of, which may also be empty");
  const int rank = RankIn(ranks.get());
  const auto parts = MeshParts::Of(parameters);
  const auto exchange = std::make_shared<StageExchange>(std::move(ranks));
  parts->Add(exchange);
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = *parameters[i];
    LS_CHECK(p.layout().is_whole(), "a model is cut into stages before its parameters are cut: '",
             p.name(), "' has been");
    const int copy = copy_of.empty() || copy_of[i] == rank_of[i] ? -1 : copy_of[i];
    exchange->SetRanks(p, rank_of[i], copy);
    ShardLayout layout;
    if (rank_of[i] != rank && copy != rank) layout.range = ShardRange{"pp", 0, 0};
    p.SetLayout(std::move(layout), parts);
  }
}

}  // namespace lockstep::dist
