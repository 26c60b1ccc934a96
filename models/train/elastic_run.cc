#include "models/train/elastic_run.h"

#include <utility>

#include "dist/collective.h"
#include "dist/groups/pause.h"

namespace lockstep::models {

ElasticRun::ElasticRun(const DistOptions& options, std::unique_ptr<dist::Membership> membership)
    : stop_ms_(options.heartbeat * 1000),
      leave_ms_(options.timeout * 1000),
      membership_(std::move(membership)) {}

std::optional<dist::Membership::Place> ElasticRun::Join(const std::exception* failure) {
  constexpr int kMostFruitless = 20;
  const int64_t step = kept_ ? kept_->state.step : -1;
  fruitless_ = failure != nullptr && step == step_ ? fruitless_ + 1 : 0;
  if (fruitless_ > kMostFruitless) {
    throw Error(StrCat(fruitless_, " worlds in a row have failed without a step; the last one: ",
                       failure->what()));
  }
  step_ = step;
  dist::MemberReady ready{.step = step, .stop_ms = stop_ms_, .leave_ms = leave_ms_};
  if (const auto* error = dynamic_cast<const dist::CollectiveError*>(failure)) {
    ready.lost = error->culprits();
  }
  leaves_ = false;
  return membership_->Join(ready);
}

void ElasticRun::Begin(const RunStart& start) {
  begun_ = start;
  begun_->going_on.reset();
  if (start.checkpoint) begun_->held.emplace(*start.checkpoint);
}

RunStart ElasticRun::Start() const {
  RunStart start = *begun_;
  start.going_on = kept_->state;
  return start;
}

const KeptRun* ElasticRun::KeptAt(const RunSetup& setup) const {
  const bool fits = kept_ && setup.start.going_on && kept_->state.step == setup.start.step;
  return fits ? &*kept_ : nullptr;
}

RunSetup PrepareToGoOn(const RunRanks& ranks, const RunStart& start, const ElasticRun& elastic,
                       const std::function<RunSetup()>& prepare) {
  RunSetup setup;
  {
    const dist::Pause pause(ranks.control().get(), "preparing to join the run");
    setup = elastic.kept() != nullptr ? elastic.kept()->setup : prepare();
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
