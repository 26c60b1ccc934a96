// The processes that a run is made of.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/control/flight_recorder.h"
#include "dist/control/pause.h"
#include "dist/control/rendezvous.h"
#include "dist/data_parallel/reducer.h"
#include "dist/process_group.h"
#include "dist/world.h"
#include "models/checkpoint/run_folder.h"
#include "models/options/config.h"
#include "models/report/trace.h"

namespace lockstep::models {

// The CPU threads of one process: config.threads, or its share of the machine's.
int ThreadsOf(const RunConfig& config, const dist::Rendezvous& rendezvous);

// The device of this rank: what `device` names, with the rank's number on its machine as the index
// of a GPU; where CUDA_VISIBLE_DEVICES shows a single one, that. InputError where it names one GPU
// for several ranks.
Device DeviceOf(const std::string& device, const dist::Rendezvous& rendezvous);

// How the reducer sums the micro-batches of a step, as the options say. `trace` (may be null) gets
// a span for each bucket.
dist::ReducerOptions ToReducerOptions(const DistOptions& options, int64_t micro_batches,
                                      TraceRecorder* trace);

// One process is its own main rank and has no groups.
class RunRanks {
 public:
  // Collective: returns when all ranks are there, with their groups. StoreError, InputError.
  // The recorder gets what the groups do; may be null.
  RunRanks(const RunConfig& config, const dist::Rendezvous& rendezvous, Device device,
           std::shared_ptr<dist::FlightRecorder> recorder);

  int rank() const { return rendezvous_.rank; }
  int size() const { return rendezvous_.world_size; }
  bool is_main() const { return rank() == 0; }
  bool on_one_machine() const { return rendezvous_.local_world_size == size(); }
  // "gloo", "nccl"
  const std::string& backend() const { return backend_; }
  // Null where there is one rank: of the gradients, on their device; of small values, on the host.
  dist::ProcessGroup* gradients() const { return gradients_.get(); }
  const std::shared_ptr<dist::ProcessGroup>& control() const { return control_; }

  // Runs f() on the main rank. It takes no part in collectives and may take long: the other ranks
  // wait when they next need this one, and say what for: "rank 0 has been writing a checkpoint for
  // 31 s" (dist/control/pause.h).
  template <class F>
  void OnMain(const char* what, const F& f) const {
    if (!is_main()) return;
    const dist::Pause pause(control_.get(), what);
    f();
  }

  // Collective. InputError, listing the differences, unless all ranks were started with the same
  // options; machines may differ in paths and threads.
  void CheckSameOptions(const RunConfig& config);

  // Collective. What `decide` says on the main rank, on all; where it throws, all throw InputError.
  RunStart FromMain(const std::function<RunStart()>& decide);

 private:
  const dist::Rendezvous rendezvous_;
  std::string backend_;
  std::unique_ptr<dist::World> world_;
  std::shared_ptr<dist::ProcessGroup> control_, gradients_;
};

}  // namespace lockstep::models
