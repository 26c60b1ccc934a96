// How the ranks of a pipeline pass tensors on.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "core/meta_memory.h"
#include "dist/pipeline/schedule.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// What passes between stages: all of one shape and dtype.
struct PipelineBoundary {
  Shape shape;
  DType dtype = DType::kF32;
};

// A group for each direction of each pair of neighbours, all made at the start and in the same
// order on all ranks: a message then waits for none but earlier ones of its own direction.
class PipelineEdges {
 public:
  // Collective over `ranks`, the pipeline's, which must outlive it; null: there is one. Makes the
  // edges that the schedule (with transfers) uses.
  PipelineEdges(ProcessGroup* ranks, const PipelineSchedule& schedule);

  // Begins a run of the schedule, whose edges are among those that were made: posts the first
  // receive of each edge, on the CPU the first two, and then one for each that is taken. On a GPU
  // each that was posted keeps multiprocessors busy until the other rank sends.
  void Begin(const PipelineSchedule& schedule, const PipelineBoundary& boundary);
  // Returns at once. Sends are made in the order of the schedule; `tensor` must stay as it is.
  void Send(const PipelineAction& send, const Tensor& tensor);
  // Waits for what this receive brings, and for what comes before it from the same rank, which may
  // be used later: activations of one stage and gradients of another.
  Tensor Receive(const PipelineAction& receive);
  // Waits for what was sent; a run must not begin before.
  void End();

 private:
  struct Incoming {
    std::vector<PipelineAction> expected;  // in order
    size_t posted = 0, taken = 0;
    std::deque<std::pair<Tensor, WorkPtr>> tensors;        // posted and not taken
    std::vector<std::pair<PipelineAction, Tensor>> early;  // taken ahead of their use
  };
  int PeerOf(const PipelineAction& transfer) const;
  ProcessGroup& Group(int from, int to, const PipelineAction& transfer) const;
  void Post(int from, Incoming& in);
  void Hold(const Tensor& tensor) {
    if (PlannedDevice(tensor.device()).is_cuda()) held_.push_back(tensor);
  }

  ProcessGroup* const ranks_;
  std::map<std::pair<int, int>, std::shared_ptr<ProcessGroup>> groups_;  // by {from, to}
  PipelineSchedule schedule_;                                            // of the run
  PipelineBoundary boundary_;
  std::map<int, Incoming> incoming_;  // by the rank they come from
  std::vector<WorkPtr> sends_;
  // On a GPU, what was sent and received in this run: memory is given back in the order of all that
  // an edge's stream was told to do, and computing would wait for the receives posted ahead.
  std::vector<Tensor> held_;
};

}  // namespace lockstep::dist
