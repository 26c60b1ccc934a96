// The load of a model's experts, for the training loop.
#pragma once

#include <vector>

#include "core/host_read.h"
#include "nn/mixture/expert_router.h"

namespace lockstep::nn {

// How many (token, slot) pairs each expert had, by layer and expert. Doubles, which hold such
// counts exactly, since they are summed over ranks.
using LayerLoads = std::vector<std::vector<double>>;

// A loop whose model has experts takes their loads once per step, after its last forward:
//   ExpertLoads loads(model);
//   ... forwards and backwards of a step ...
//   LayerLoads step = ToLoads(loads.Take());
//   ... sums them over the data-parallel ranks ...
//   loads.MoveBiases(step);
class ExpertLoads {
 public:
  // Finds the routers below the module, which outlives this. They must stay in their places; freeze
  // them before this, if at all.
  explicit ExpertLoads(Module& model);

  bool empty() const { return routers_.empty(); }
  // Whether MoveBiases does anything, for which the loads must be known before the next step.
  bool has_biases() const { return has_biases_; }
  // Begins to read the loads since the last call, a read for each router, and counts from 0 again.
  // In a pipeline, loads of routers on other ranks are 0, for a sum over all ranks.
  std::vector<HostRead> Take();
  // Leaves out what has been counted since the last Take.
  void Discard();
  // With sigmoid scores: bias += bias_rate for experts whose load is below the mean, -= for those
  // above it. Wang et al., "Auxiliary-loss-free load balancing strategy for mixture-of-experts"
  // (2024), algorithm 1. Biases of routers whose weight is frozen stay, as when adapters are
  // trained, whose files do not have them. Loads are integers, so that their sum, and with it the
  // biases, have the same bits however the step's tokens were partitioned.
  void MoveBiases(const LayerLoads& loads) const;

 private:
  std::vector<ExpertRouter*> routers_;
  bool has_biases_ = false;
};

// Waits for the reads.
LayerLoads ToLoads(std::vector<HostRead> reads);

// How even a step's loads are: relative to the mean of a layer, in the layer where it is worst; 1
// is even.
struct LoadSpread {
  double most = 1;   // of the expert with the largest load
  double least = 1;  // of the one with the smallest
};
LoadSpread SpreadOf(const LayerLoads& loads);

}  // namespace lockstep::nn
