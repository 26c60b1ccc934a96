// Data parallelism in one object: the same model on every rank, each with its own micro-batches.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/module.h"
#include "dist/data_parallel/data_ranks.h"
#include "dist/data_parallel/reducer.h"
#include "dist/groups/agreement.h"

namespace lockstep::dist {

// Collective. Compares names, shapes and dtypes of all parameters and buffers (ReplicaError names
// the first difference), and copies rank 0's values to all ranks. Returns the group, which may be
// null. `call` is for errors. For constructors, before what else they make.
ProcessGroup* AlignReplicas(ProcessGroup* group, const Module& module, const char* call);

// Five lines make a single-process loop data parallel:
//   DataParallel parallel(group, model);                       // after Materialize
//   ... this rank's share of the samples (data/distributed_sampler.h) ...
//   auto training = BeginStep(.., {.first_sample = of this rank});   // dropout draws by it
//   parallel.Backward(loss, samples, training);                // loss: the sum over `samples`
//   ... clipping, optimizer and ZeroGrad as before: all ranks do the same ...
//   if (parallel.is_main()) print, save                        // names are those of one process;
//                                                              // in a dist::Pause if it takes long
// The module is not wrapped: parameters keep their names, and forward is the model's own.
class DataParallel : public DataRanks {
 public:
  // Collective: AlignReplicas. A null group means a single rank, to whose sum the options apply
  // too. Group and module must outlive it. `control` is another group of the same ranks, for small
  // values; null: a duplicate of `group`.
  DataParallel(ProcessGroup* group, Module& module, ReducerOptions options = {},
               std::shared_ptr<ProcessGroup> control = nullptr);
  // Collective. A rank that ends while others continue, as by `if (rank == 1) return 0;` in the
  // loop, is named by them at once, whichever of the groups they are in.
  ~DataParallel() override { LeaveControl(); }

  Reducer& reducer() { return reducer_; }

  const std::vector<int64_t>& micro_order() const override { return reducer_.micro_order(); }
  int64_t micro_batches() const override { return reducer_.micro_batches(); }
  // Until the last, backwards only add to this rank's gradients, as within a Reducer::NoSync.
  void BeginMicroBatch(bool last) override;
  BackwardObserver* ObserveOnlyGiven() override;
  const CommunicationTimes& times() const override { return reducer_.times(); }
  void CheckWeights(const std::string& when) override;
  std::string LocateNonFinite(int64_t ago = 0) override { return reducer_.LocateNonFinite(ago); }
  // Collective, after a backward that communicated. Throws ReplicaError if gradients differ.
  void CheckGradients();

 private:
  static Reducer MakeReducer(ProcessGroup* group, Module& module, ReducerOptions options);

  Module& module_;
  Reducer reducer_;
  std::optional<Reducer::NoSync> no_sync_;
};

}  // namespace lockstep::dist
