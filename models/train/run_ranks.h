// The processes that a run is made of.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/control/rendezvous.h"
#include "dist/flight/flight_recorder.h"
#include "dist/groups/pause.h"
#include "dist/process_group.h"
#include "dist/world.h"
#include "models/checkpoint/run_folder.h"
#include "models/options/config.h"
#include "models/report/trace.h"
#include "models/train/parallel_plan.h"

namespace lockstep::models {

// The CPU threads of one process: config.threads, or its share of the machine's.
int ThreadsOf(const RunConfig& config, const dist::Rendezvous& rendezvous);

// Among how many ranks the samples of a step are partitioned: those of the run that are not needed
// for parallel.pp, parallel.cp and parallel.tp. Throws InputError if these do not divide them.
int64_t DataRanksOf(const RunConfig& config, int64_t ranks);

// All processes of the run, as `rank` of them sees them.
dist::Mesh MeshOf(const RunConfig& config, int rank, int ranks);

// How the options say that a step goes through a pipeline. `trace` (may be null) gets a span for
// each action.
PipelinePlan ToPipelinePlan(const RunConfig& config, int64_t window, TraceRecorder* trace);

// How the options say that the reducer sums the micro-batches of a step. `trace` (may be null) gets
// a span for each bucket.
dist::ReducerOptions ToReducerOptions(const DistOptions& options, int64_t micro_batches,
                                      TraceRecorder* trace);

// The same for workers with steps of their own.
dist::DiLoCoOptions ToDiLoCoOptions(const DistOptions& options, int64_t micro_batches);

// The same for a sharded model.
dist::ShardOptions ToShardOptions(const RunConfig& config, int64_t micro_batches,
                                  TraceRecorder* trace);

// A single process is the main rank and has no groups.
class RunRanks {
 public:
  // Collective: returns once all ranks have joined their groups. Throws ConnectionError and
  // InputError. The recorder (may be null) gets what the groups do. `gives_up`: as in WorldOptions.
  RunRanks(const RunConfig& config, const dist::Rendezvous& rendezvous, Device device,
           std::shared_ptr<dist::FlightRecorder> recorder,
           const std::function<bool()>& gives_up = {});

  int rank() const { return rendezvous_.rank; }
  int size() const { return rendezvous_.world_size; }
  bool is_main() const { return rank() == 0; }
  bool on_one_machine() const { return rendezvous_.local_world_size == size(); }
  // "tcp", "nccl"
  const std::string& backend() const { return backend_; }
  // The group of all ranks, for small values on the host. Null for a single rank.
  const std::shared_ptr<dist::ProcessGroup>& control() const { return control_; }
  // For CheckpointSaver.
  dist::ProcessGroup* checkpoints() const { return checkpoints_.get(); }
  // For StateCopies, of an elastic run that needs them; else null.
  dist::ProcessGroup* copies() const { return copies_.get(); }
  // Along the axes of parallel.pp, cp, tp, ep, shard and shard_ranks.
  const MeshGroups& groups() const { return groups_; }

  // Runs f() on the main rank. f takes no part in collectives and may take long: the other ranks
  // wait when they next need the main rank, and say for what: "rank 0 has been writing a checkpoint
  // for 31 s" (dist/groups/pause.h).
  template <class F>
  void OnMain(const char* what, const F& f) const {
    if (!is_main()) return;
    const dist::Pause pause(control_.get(), what);
    f();
  }

  // Collective. Runs f() on every rank and returns what it returned on each. If it throws on any,
  // every rank throws: those on which it did the same again, the others an InputError, or an Error
  // if it was none: "rank 1: " and the error of the first of these. `f` must not be collective.
  std::vector<std::string> OnEveryRank(const std::function<std::string()>& f) const;

  // Collective. Throws an InputError that lists the differences unless all ranks were started with
  // the same options; machines may differ in paths and threads.
  void CheckSameOptions(const RunConfig& config) const;

  // Collective. Returns on all ranks what `decide` returns on the main one; if it throws there, all
  // throw, as from OnEveryRank.
  RunStart FromMain(const std::function<RunStart()>& decide) const;

 private:
  const dist::Rendezvous rendezvous_;
  std::string backend_;
  std::unique_ptr<dist::World> world_;
  std::shared_ptr<dist::ProcessGroup> control_, checkpoints_, copies_;
  MeshGroups groups_;
};

}  // namespace lockstep::models
