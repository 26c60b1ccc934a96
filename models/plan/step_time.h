// How long a step takes on paper.
#pragma once

#include <string>
#include <vector>

#include "models/plan/cluster.h"
#include "models/plan/layout.h"

namespace lockstep::models {

struct RunSetup;

// Seconds of one kernel or message: max(FLOPs / (peak x efficiency), bytes / bandwidth).
//
// A product [m, k] x [k, n]. Its efficiency is the device's share for large ones, times how full
// the last round of tiles over its units is, times k / (k + Cluster::tile), for the way in and out
// of a tile; elements take `bytes` each.
double ProductSeconds(const Cluster& cluster, double m, double n, double k, int bytes);
// `bytes` are read or written; elementwise: by norms, activations and losses.
double MemorySeconds(const Cluster& cluster, double bytes);
double ElementwiseSeconds(const Cluster& cluster, double bytes);
// A ring over `ranks` that gathers, or scatters sums of, `bytes` in all.
double RingSeconds(const Link& link, int64_t ranks, double bytes);

// What backward computes again, in seconds.
struct Recomputed {
  double products = 0, attention = 0, other = 0, messages = 0;
  double total() const { return products + attention + other + messages; }
};

// Of a rank, in seconds of a step. They add up to `total`.
struct StepTime {
  double products = 0, attention = 0;           // forward and backward
  double other = 0;                             // norms, activations, losses
  double norms = 0, activations = 0, loss = 0;  // of `other`, and of what is recomputed of it
  double update = 0;                            // the optimizer's
  double host = 0;                              // between kernels
  Recomputed recomputed;                        // besides these
  double tensor = 0, context = 0, experts = 0;  // messages within layers: nothing hides them
  double data = 0;     // gradients and weights between data ranks, as far as exposed
  double offload = 0;  // copies to and from the host, as far as exposed
  double idle = 0;     // a pipeline's bubble, and stages that are less than the largest
  double total = 0;
};

// For a picture: what a rank does when.
struct StepSpan {
  enum class Kind { kForward, kBackward, kUpdate, kMessage } kind = Kind::kForward;
  double begin = 0, end = 0;
};

// What the time of a step depends on, of a model, its windows and its precision: plain numbers, so
// that a test can write down a published model.
struct PlannedModel {
  double layers = 0, embd = 0, queries = 0, keys = 0;  // queries, keys: width of all heads together
  double inner = 0, vocabulary = 0;                    // inner: of the MLP
  bool gated = false, tied = false;
  double experts = 0, experts_used = 0, expert_inner = 0, shared_inner = 0;  // 0: no mixture
  double window = 0;                                                         // tokens of a sequence
  double attended = 0;   // keys that a query sees, at the mean of tokens and layers
  int weight_bytes = 2;  // of a weight, or an activation
  // Of a block without its experts, of its experts, both at the mean; of embedding and head.
  double block_parameters = 0, expert_parameters = 0, end_parameters = 0;
  double flops_per_token = 0;  // Gpt::FlopsPerToken

  static PlannedModel Of(const RunSetup& setup);
  // Of a rank that has so many blocks, and all or nothing of embedding and head.
  double ParametersOf(const MeshSizes& mesh, double blocks, bool ends) const;
};

// A model's blocks and its head, which takes as long as `head` blocks, cut into two stages or more
// (models/train/pipeline_stages.h): the most blocks of a stage without the head, and how many
// blocks' time the longest stage takes.
struct StageCut {
  double blocks = 0, longest = 0;
};
StageCut CutStages(double layers, double head, double stages);

// The step of the rank that takes longest. `exact`: plays a pipeline's schedule, rather than to
// take its bubble from the formula in dist/pipeline/schedule.h. `spans` (may be null) gets
// what a rank without a pipeline does, of at most three micro-batches.
StepTime TimeOf(const PlannedModel& model, const Layout& layout, const Cluster& cluster,
                bool exact = true, std::vector<StepSpan>* spans = nullptr);

}  // namespace lockstep::models
