// How much memory a training step will take, found by a step on the meta device, which has shapes
// but no bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "models/gpt/language_model.h"
#include "models/report/format.h"
#include "models/train/run_setup.h"
#include "models/train/step/step_ranks.h"
#include "optim/optimizer.h"

namespace lockstep::models {

// Bytes of tensors, as requested.
struct MemoryKinds {
  int64_t parameters = 0;
  int64_t gradients = 0;  // of parameters
  int64_t optimizer = 0;  // its state
  // Batches, the tensors that forward keeps for backward, and those that backward keeps for weight
  // gradients that a zero-bubble pipeline makes later.
  int64_t activations = 0;
  // What summing the gradients over ranks and micro-batches takes in addition to the gradients:
  // buckets and staging; with sharding, whole gradients of the units that are being summed.
  int64_t buckets = 0;
  // With sharding, whole weights of the units that are in use or on their way. `parameters`,
  // `gradients` and `optimizer` are then this rank's parts.
  int64_t gathers = 0;
  int64_t workspace = 0;  // gradients of activations, and temporaries
  int64_t total() const {
    return parameters + gradients + optimizer + activations + buckets + gathers + workspace;
  }
};

struct MemoryPlan {
  MemoryKinds peak;     // when the total is largest; that total is what the run needs
  MemoryKinds largest;  // of each kind by itself, at different times
  // What the allocator takes from the system, or from the driver: it rounds sizes up, and keeps
  // freed blocks, on the CPU each for its size, on a GPU in segments (core/cuda/block_pool.h), as
  // long as there is more. With CUDA graphs this is what the allocator counts as live.
  int64_t reserved = 0;
  // What this process takes before there is a model: the program, its libraries, the data; on a GPU
  // CUDA's context and libraries. 0: not known. Not planned: the threads' scratch memory, some MiB
  // each, and the allocator's last page.
  int64_t program = 0;
  // Elements of the parameters that a checkpoint has (with adapters, only the trained ones): how
  // many this rank has, and how many of these it writes to a checkpoint in parts where the model
  // has one copy; ranks that have the same ones divide the writing. And the bytes of the other
  // parameters.
  int64_t elements = 0, written = 0, left_out = 0;
  // What a rank copies to the host's memory to write a checkpoint from, at most, and whether each
  // rank does, rather than only the first. Only asynchronous checkpoints need it, or those for
  // which the first rank collects what others have of the model.
  int64_t snapshot = 0;
  bool all_copy = false, collects = false;
  // What each rank takes of its host for StateCopies, of an elastic run that needs them.
  int64_t state_copies = 0;
  // For a GPU: page-locked host memory for what is offloaded, and how much of it stays from step to
  // step: weights and optimizer state.
  int64_t host = 0, host_kept = 0;
  // Steps are CUDA graphs, which keep everything that is reserved; and `evaluation` is what the
  // allocator takes in addition for an evaluation, which is no graph.
  bool graphs = false;
  // There are no steps: `peak` and `largest` are those of an evaluation.
  bool evaluates_only = false;
  int64_t evaluation = 0;
  // Bytes of tensors, with weights and optimizer state, at the peak of an evaluation, for which
  // ranks that compute a sequence together each have all of it. It is that of the rank that takes
  // most.
  int64_t evaluating = 0;
  // In a pipeline, the rank along pp with the highest peak; the whole plan describes that rank (of
  // sharded ranks, the one with the most weights). -1: no pipeline.
  int64_t pipeline_rank = -1;
  // At most this much: what a rank takes on the GPU, or what this many ranks of one machine take on
  // its CPU, where each rank of a pipeline counts as the one that takes most.
  int64_t needed(Device device, int64_t processes = 1) const {
    if (!device.is_cpu()) {
      return std::max({graphs ? reserved + evaluation : 0, peak.total(), evaluating}) + program;
    }
    return processes * (reserved + program + state_copies) + (all_copy ? processes : 1) * snapshot;
  }
  // The host memory that this many GPU ranks of one machine take together.
  int64_t needed_of_host(int64_t processes = 1) const {
    return processes * (host + state_copies) + (all_copy ? processes : 1) * snapshot;
  }
};

struct MemoryPlanOptions {
  std::function<std::shared_ptr<LanguageModel>()> model;  // materialised on the meta device
  // The ranks of a step, in planned groups (dist/groups/planned_group.h); they may also materialise
  // the model. Empty: a single process.
  std::function<std::unique_ptr<StepRanks>(LanguageModel&)> ranks{};
  // Empty: the run only evaluates.
  std::function<std::unique_ptr<optim::Optimizer>(LanguageModel&)> optimizer{};
  // Empty: kNextToken.
  std::function<std::unique_ptr<const Objective>(LanguageModel&)> objective{};
  int64_t batch_size = 1;
  int64_t window = 1;      // tokens of a sample
  int64_t grad_accum = 1;  // of a single process
  double clip = 1;
  Device device = kCpu;
  bool document_mask = false;
  bool evaluates = false;  // as train_gpt does, at the end at least
  bool graphs = false;     // of a GPU: steps are CUDA graphs, with pools of their own
};

// Makes the model and the optimizer, two updates as Trainer does, and an evaluation, as far as the
// run makes them. Allocates next to nothing.
MemoryPlan PlanMemory(const MemoryPlanOptions& options);
MemoryPlan PlanMemory(const RunSetup& setup);

// How far a plan may be from what the allocator measures.
inline constexpr double kPlanTolerance = 0.03;
using MemoryFits = std::function<bool(const MemoryPlan&)>;

// FormatBytes, or another unit.
using ByteFormat = std::string (*)(double bytes);

// On one line: "48.2 MiB at the peak of a step: parameters 3.07 MiB, gradients ...", or of an
// evaluation where there are no steps; what the process takes for it on the CPU, or "" if that is
// not planned. Then a table of several lines; of a GPU with what a rank takes of its host's memory.
std::string Summary(const MemoryPlan& plan, ByteFormat format = FormatBytes);
std::string ProcessSummary(const MemoryPlan& plan);
std::string Table(const MemoryPlan& plan, Device device, ByteFormat format = FormatBytes);

}  // namespace lockstep::models
