// How a run divides a model and the samples of its steps among its ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/module.h"
#include "dist/data_parallel/data_ranks.h"
#include "dist/data_parallel/diloco.h"
#include "dist/data_parallel/reducer.h"
#include "dist/data_parallel/tied_gradients.h"
#include "dist/mesh.h"
#include "dist/pipeline/pipeline.h"
#include "dist/shard/fully_shard.h"

namespace lockstep::models {

struct RunSetup;
class TraceRecorder;

// This rank's groups along the axes of a mesh (dist/mesh.h). Null: one rank.
struct MeshGroups {
  std::shared_ptr<dist::ProcessGroup> pipeline;  // pp: the other stages
  // dp: the same part of the model, other samples. Where the reducer sums over sequences, too
  // (`sums_context`), dp and cp.
  std::shared_ptr<dist::ProcessGroup> data;
  // Where the model has several copies: the ranks that hold the shards of one, and those with the
  // same shard of other copies. Otherwise null, and `data` holds the shards.
  std::shared_ptr<dist::ProcessGroup> shard, replicate;
  std::shared_ptr<dist::ProcessGroup> context;  // cp: other parts of the same sequences
  std::shared_ptr<dist::ProcessGroup> tensor;   // tp: other parts of the same layers
  // ep and edp: the ranks that split the experts, and those that have the same ones.
  // `data_ranks_of_experts`: how many ranks of `data` are in `experts`.
  std::shared_ptr<dist::ProcessGroup> experts, expert_copies;
  int64_t data_ranks_of_experts = 1;
  // pp and the axes of `data`, for small values on the host: what stages and samples add up to.
  std::shared_ptr<dist::ProcessGroup> control;
  // All ranks of the run, for errors (StepRanks::all). Of() leaves it null.
  std::shared_ptr<dist::ProcessGroup> all;

  // `make` makes this rank's group along the axes, collectively; `on_host`: for small values.
  // `data` is along dp; with `sums_context` (ParallelPlan::sums_context_with_data) also along cp.
  using Make = std::function<std::shared_ptr<dist::ProcessGroup>(
      const std::vector<std::string>& axes, bool on_host)>;
  static MeshGroups Of(const dist::Mesh& mesh, const Make& make, bool sums_context = false);
};

struct PipelinePlan {
  dist::PipelineKind kind = dist::PipelineKind::k1F1B;
  int chunks = 2;      // stages per rank, where the kind leaves that open
  int64_t window = 1;  // tokens of a sample
  // Gets what this rank carried out; may be empty.
  std::function<void(const dist::PipelineSpan&)> on_span = {};
};

struct ParallelPlan {
  int64_t micro_batches = 1;  // of a step, on all ranks; those of `shard` and `reducer`, too
  std::optional<PipelinePlan> pipeline = {};  // none: every rank has all layers
  // The parts in which the sums of a layer are made (dist/tensor/tensor_ranks.h).
  int64_t tensor_parts = 1;
  // Whether the library adds them (dist/tensor/partial_sums.h).
  bool fast_tensor_sums = false;
  // The pairs of chunks into which a sequence is cut (dist/context/context_ranks.h); 1: it is not.
  int64_t context_pairs = 1;
  // Whether the reducer sums the gradients of a sequence's parts too, in the library's order.
  bool sums_context_with_data = false;
  // How the data ranks work together: with `diloco` they make steps of their own, with `shard` they
  // also shard weights and optimizer state, with `reducer` they only sum gradients. None: a single
  // process, in the library's order.
  std::optional<dist::DiLoCoOptions> diloco = {};
  std::optional<dist::ShardOptions> shard = {};
  std::optional<dist::ReducerOptions> reducer = {};
};

// How a run is divided among its ranks. `trace` (may be null) gets spans of what they exchange.
ParallelPlan PlanOf(const RunSetup& setup, TraceRecorder* trace = nullptr);

// Whether weights or optimizer state are sharded, too, rather than only samples partitioned.
bool IsSharded(const RunSetup& setup);
// Whether ranks have different parts of the weights, or of what an optimizer keeps of them.
bool SharesOutModel(const RunSetup& setup);
// Whether each rank writes its part of a checkpoint, rather than the first rank all of it.
bool SavesParts(const RunSetup& setup);
// This rank of the mesh and the ranks of other copies of the model that have the same part of it;
// each of them writes a share. (What a part has in common with others, such as norms, is on more.)
std::vector<int> RanksWithSamePart(const RunSetup& setup, const dist::Mesh& mesh);
// Whether each rank is a worker with steps of its own (dist::DiLoCo): how many there are; else 0.
int64_t WorkersOf(const RunSetup& setup);
// Whether a run needs a Reducer to sum gradients over ranks or micro-batches, or workers: not if a
// single process sums them in the library's order.
bool SumsGradients(const RunSetup& setup);

// Collective. Makes what sums the gradients of a model over `groups`: a FullyShard, or a
// DataParallel or its like, or a DiLoCo, as the plan says; null for neither. To be called before
// the module has memory for its weights in the first case, and after that in the second. Of a stage
// of a pipeline, which may have nothing to train: `separate_uses` are those of the whole model's
// tied weights (ShardOptions); it sees only the backwards that it is given to
// (DataRanks::ObserveOnlyGiven).
std::unique_ptr<dist::DataRanks> MakeDataRanks(const MeshGroups& groups, const ParallelPlan& plan,
                                               Module& module,
                                               const dist::TiedGradients* separate_uses = nullptr);

}  // namespace lockstep::models
