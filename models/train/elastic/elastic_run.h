// An elastic run, as one of its processes sees it: the process outlives the worlds of ranks.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "dist/launch/membership.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/gpt.h"
#include "models/train/elastic/state_copies.h"
#include "models/train/interrupt.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"
#include "models/train/utilization.h"
#include "optim/optimizer.h"

namespace lockstep::models {

// What a process keeps of a run when it leaves a world. Where ranks have different parts of the
// model, StateCopies have the state, and model and optimizer are null.
struct KeptRun {
  RunSetup setup;  // as of the start of that world
  std::shared_ptr<Gpt> model;
  std::shared_ptr<optim::Optimizer> optimizer;
  TrainerState state;  // after the last step that this process has made, as far as a step needs it
  Utilization utilization;
};

// A step is made entirely by a process or not at all (TrainerOptions::sums_first), so what it keeps
// is the state after a step. When ranks end, those that live may have made one more step than
// others. Rank 0 of the next world is one that has come furthest, and the others have its state
// before they go on: those that are behind, and those that have just been started.
class ElasticRun {
 public:
  // The signal is noted from now on, so that a run that is told to stop between two worlds saves.
  ElasticRun(const RunConfig& config, Device device, std::unique_ptr<dist::Membership> membership);

  // Before a process that was started again joins the others: opens the data, so that these need
  // not wait for it. A run that begins from weights or a checkpoint is prepared when it joins.
  void PrepareToJoin(const std::function<RunSetup()>& prepare);
  // The outcome, if the run began as it assumes; else null.
  const RunSetup* Prepared(const RunStart& start) const;

  // Waits for the next world; none if the run is over. `failure`: why the last one ended, or null.
  std::optional<dist::Membership::Place> Join(const std::exception* failure);
  // Whether others wait for a new world.
  bool is_summoned() { return membership_->is_summoned(); }
  // Whether a process of this world has ended.
  bool is_broken() { return membership_->is_broken(); }

  // Null if every rank has the whole state of the run.
  StateCopies* copies() { return copies_ ? &*copies_ : nullptr; }
  int64_t epoch() const { return epoch_; }  // of the world
  // The step after which this process could go on; -1: none.
  int64_t step() const;
  // Collective, in a new world. Whether it goes on from the memory of its processes; then Start
  // says how, on the main rank.
  bool GoesOn(const RunRanks& ranks);

  // Notes how the run began, and holds the checkpoint that it began from: who joins reads it again.
  void Begin(const RunStart& start);
  // The same, with the state that the world goes on from.
  RunStart Start() const;

  void Keep(KeptRun kept) { kept_ = std::move(kept); }
  void Forget() { kept_.reset(); }
  const KeptRun* kept() const { return kept_ ? &*kept_ : nullptr; }
  // The same, if it is what the world goes on from; else null.
  const KeptRun* KeptAt(const RunSetup& setup) const;
  // Whether the loop has ended only for another world, and not the run.
  bool leaves() const { return leaves_; }
  void Leave(bool leaves) { leaves_ = leaves; }

 private:
  const int64_t stop_ms_, leave_ms_;  // as in MemberReady
  const std::vector<int> sizes_;      // as in MemberReady
  const std::unique_ptr<dist::Membership> membership_;
  const InterruptGuard interrupt_;
  std::optional<RunSetup> prepared_;
  std::optional<RunStart> begun_;
  std::optional<KeptRun> kept_;
  std::optional<StateCopies> copies_;
  const TrainerState* agreed_ = nullptr;  // by copies_
  int64_t epoch_ = 0;
  bool leaves_ = false;
  int64_t joined_at_ = -1;  // the step with which it joined last
  int fruitless_ = 0;       // worlds in a row that made no step
};

// The part of the state that each of the run's ranks has: its number, from 0.
std::vector<int> PartOfRanks(const RunSetup& setup, int ranks);

// What the run is, as rank 0 goes on with it. Collective, but for prepare(), which a process calls
// that has joined: if it is refused, it fails alone.
RunSetup PrepareToGoOn(const RunRanks& ranks, const RunStart& start, const ElasticRun& elastic,
                       const std::function<RunSetup()>& prepare);

}  // namespace lockstep::models
