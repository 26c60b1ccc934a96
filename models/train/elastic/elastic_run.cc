#include "models/train/elastic/elastic_run.h"

#include <map>
#include <utility>

#include "dist/collective.h"
#include "dist/groups/pause.h"
#include "dist/shard/shard_sum.h"
#include "models/options/plan_rules.h"
#include "models/report/run_progress.h"
#include "models/train/parallel_plan.h"

namespace lockstep::models {
namespace {

// The numbers of processes among which the steps of such a run can be divided; empty: any.
std::vector<int> SizesOf(const RunConfig& config) {
  constexpr int kMost = 1024;
  const ParallelOptions& p = config.parallel;
  std::vector<int> sizes;
  if (!DividesCopies(p)) return sizes;
  const auto of_a_copy = static_cast<int>(p.pp * p.tp * p.cp);
  for (int data = 1; data <= kMost / of_a_copy; ++data) {
    try {
      const int64_t micro_batches = MicroBatches(config.train, data);
      const bool shards = p.shard != "none" && data > 1;
      if ((shards || p.pp > 1) && micro_batches % data != 0) continue;
      if (shards) {
        const int64_t of_copy = p.shard_ranks > 0 ? p.shard_ranks : data;
        if (data % of_copy != 0) continue;
        const dist::ShardOptions o = ToShardOptions(config, micro_batches, /*trace=*/nullptr);
        dist::PlanShardSum(micro_batches, {of_copy, data / of_copy}, o.accumulate, o.sum);
      }
    } catch (const Error&) {  // there are too many for the step's samples, or for their sum's order
      continue;
    }
    sizes.push_back(data * of_a_copy);
  }
  return sizes;
}

}  // namespace

ElasticRun::ElasticRun(const RunConfig& config, Device device,
                       std::unique_ptr<dist::Membership> membership)
    : stop_ms_(config.dist.heartbeat * 1000),
      leave_ms_(config.dist.timeout * 1000),
      sizes_(SizesOf(config)),
      membership_(std::move(membership)) {
  if (DividesCopies(config.parallel)) copies_.emplace(device);
}

void ElasticRun::PrepareToJoin(const std::function<RunSetup()>& prepare) {
  try {
    prepared_ = prepare();
  } catch (const std::exception&) {  // it is prepared once more, and then says so
  }
}

const RunSetup* ElasticRun::Prepared(const RunStart& start) const {
  const bool fits = prepared_ && !start.checkpoint && prepared_->weights.empty();
  return fits ? &*prepared_ : nullptr;
}

std::optional<dist::Membership::Place> ElasticRun::Join(const std::exception* failure) {
  constexpr int kMostFruitless = 20;
  const int64_t at = step();
  fruitless_ = failure != nullptr && at == joined_at_ ? fruitless_ + 1 : 0;
  if (fruitless_ > kMostFruitless) {
    throw Error(StrCat(fruitless_, " worlds in a row have failed without a step; the last one: ",
                       failure->what()));
  }
  joined_at_ = at;
  dist::MemberReady ready{.step = at, .stop_ms = stop_ms_, .leave_ms = leave_ms_, .sizes = sizes_};
  if (copies_) ready.held = copies_->held();
  if (const auto* error = dynamic_cast<const dist::CollectiveError*>(failure)) {
    ready.lost = error->culprits();
  }
  leaves_ = false;
  const auto place = membership_->Join(ready);
  if (place) epoch_ = place->epoch;
  return place;
}

int64_t ElasticRun::step() const {
  if (copies_) return copies_->step();
  return kept_ ? kept_->state.step : -1;
}

bool ElasticRun::GoesOn(const RunRanks& ranks) {
  if (!copies_) return kept_.has_value();
  std::string lost;
  agreed_ = copies_->Agree(ranks.control().get(), begun_ ? begun_->step : -1, &lost);
  if (!lost.empty() && ranks.is_main()) {
    Warn(lost + ": the run begins again from its newest checkpoint");
  }
  if (agreed_ == nullptr) kept_.reset();
  return agreed_ != nullptr;
}

void ElasticRun::Begin(const RunStart& start) {
  begun_ = start;
  begun_->going_on.reset();
  if (start.checkpoint) begun_->held.emplace(*start.checkpoint);
}

RunStart ElasticRun::Start() const {
  RunStart start = *begun_;
  start.going_on = copies_ ? *agreed_ : kept_->state;
  return start;
}

const KeptRun* ElasticRun::KeptAt(const RunSetup& setup) const {
  const bool fits =
      kept_ && kept_->model && setup.start.going_on && kept_->state.step == setup.start.step;
  return fits ? &*kept_ : nullptr;
}

std::vector<int> PartOfRanks(const RunSetup& setup, int ranks) {
  std::map<int, int> numbers;  // by the first rank with the part
  std::vector<int> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    const int first = RanksWithSamePart(setup, MeshOf(setup.config, rank, ranks)).at(0);
    parts.push_back(numbers.emplace(first, static_cast<int>(numbers.size())).first->second);
  }
  return parts;
}

RunSetup PrepareToGoOn(const RunRanks& ranks, const RunStart& start, const ElasticRun& elastic,
                       const std::function<RunSetup()>& prepare) {
  RunSetup setup;
  {
    const dist::Pause pause(ranks.control().get(), "preparing to join the run");
    const RunSetup* const prepared = elastic.Prepared(start);
    setup = elastic.kept() != nullptr ? elastic.kept()->setup
            : prepared != nullptr     ? *prepared
                                      : prepare();
  }
  const TrainerState& state = *start.going_on;
  setup.data_ranks = DataRanksOf(setup.config, ranks.size());
  setup.samples_at_start = setup.SamplesBefore(state.step);
  setup.start.checkpoint = start.checkpoint;
  setup.start.step = state.step;
  setup.start.going_on = state;
  return setup;
}

}  // namespace lockstep::models
