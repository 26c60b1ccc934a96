// Data parallelism in one object: the same model on every rank, each with its own micro-batches.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/module.h"
#include "dist/data_parallel/reducer.h"
#include "dist/groups/agreement.h"

namespace lockstep::dist {

// Five lines make a single-process loop data parallel:
//   DataParallel parallel(group, model);                       // after Materialize
//   ... this rank's share of the samples (data/distributed_sampler.h) ...
//   auto training = BeginStep(.., {.first_sample = of this rank});   // dropout draws by it
//   Backward(loss, 1 / (samples of all ranks));                // sums, not means
//   ... clipping, optimizer and ZeroGrad as before: all ranks do the same ...
//   if (parallel.is_main()) print, save                        // names are those of one process;
//                                                              // in a dist::Pause if it takes long
// The module is not wrapped: parameters keep their names, and forward is the model's own.
class DataParallel {
 public:
  // Collective. Compares names, shapes and dtypes of all parameters and buffers (ReplicaError names
  // the first difference), and copies rank 0's values to all ranks. A null group means a single
  // rank, to whose sum the options apply too. Group and module must outlive it. `control` is
  // another group of the same ranks, for small values; null: a duplicate of `group`.
  DataParallel(ProcessGroup* group, Module& module, ReducerOptions options = {},
               std::shared_ptr<ProcessGroup> control = nullptr);
  // Collective. A rank that ends while others continue, as by `if (rank == 1) return 0;` in the
  // loop, is named by them at once, whichever of the groups they are in.
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  int rank() const { return group_ ? group_->rank() : 0; }
  int size() const { return group_ ? group_->size() : 1; }
  bool is_main() const { return rank() == 0; }
  Reducer& reducer() { return reducer_; }

  // Collective, between steps. Throws ReplicaError if weights or buffers differ; `when` is for the
  // message: "after step 100".
  void CheckWeights(const std::string& when);
  // Collective, after a backward that communicated. Throws ReplicaError if gradients differ.
  void CheckGradients();

  // Collective. The values of all ranks, by rank.
  std::vector<std::vector<double>> Gather(std::span<const double> values);
  // Collective. The sum over all ranks, in rank order.
  double Sum(double value);
  int64_t Sum(int64_t value);
  // Collective. `values` becomes the element-wise sum over all ranks. Exact where at most one
  // rank's value is not 0.
  void SumInPlace(std::vector<double>* values);
  // Collective. Whether `value` is true on any rank, for decisions that all ranks must make alike.
  bool Any(bool value) { return Sum(int64_t{value}) > 0; }

 private:
  const int exceptions_;  // in flight at construction
  Module& module_;
  ProcessGroup* const group_;
  // For everything but gradients, whose order it is then independent of. Null: one rank.
  const std::shared_ptr<ProcessGroup> control_;
  Reducer reducer_;
};

}  // namespace lockstep::dist
