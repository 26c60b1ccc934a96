// What can be known of a schedule before it runs.
#pragma once

#include <vector>

#include "dist/pipeline/schedule.h"

namespace lockstep::dist {

// Throws ArgumentError, which names rank, action and what it waits for or lacks, unless
// - every stage has one forward and either one backward or one input and one weight gradient of
//   each micro-batch;
// - the ranks can carry it out in order, even where a send waits for its receive;
// - where it has transfers, each send has a receive, in the same order between any two ranks, and
//   no input or gradient is used that was not received;
// - each stage makes its weight gradients in the order of the micro-batches: sums of gradients
//   depend on it;
// - no rank keeps more inputs than schedule.in_flight.
void Check(const PipelineSchedule& schedule);

// The most stage inputs that each rank keeps at the same time.
std::vector<int> PeakInFlight(const PipelineSchedule& schedule);

// How long a stage takes for a micro-batch, and a transfer. A backward takes input_grad +
// weight_grad.
struct PipelineTimes {
  double forward = 1, input_grad = 1, weight_grad = 1, transfer = 0;
};

struct SimulatedAction {
  PipelineAction action;
  double begin = 0, end = 0;
};

struct SimulatedPipeline {
  double makespan = 0;
  std::vector<double> busy;                           // of each rank
  std::vector<std::vector<SimulatedAction>> actions;  // of each rank, without transfers

  // The share of the makespan in which a rank computes nothing, and its mean over the ranks.
  double IdleShare(int rank) const { return 1 - busy[static_cast<size_t>(rank)] / makespan; }
  double IdleShare() const;
};

// Ranks compute in order; transfers take no time of theirs. Throws as Check does if the ranks wait
// for each other.
SimulatedPipeline Simulate(const PipelineSchedule& schedule, const PipelineTimes& times = {});

}  // namespace lockstep::dist
