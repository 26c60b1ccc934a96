// Carries a schedule out in order, without computing anything.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "dist/pipeline/schedule.h"

namespace lockstep::dist {

// Each rank makes its actions in order, as soon as what they need is there. A transfer happens when
// both of its ranks are at it: a send waits for its receive, as NCCL's may. Time is linear in the
// number of actions.
class ScheduleWalk {
 public:
  // Outlived by the schedule, which has ranks for all stages.
  explicit ScheduleWalk(const PipelineSchedule& schedule);

  // Calls visit(rank, action) in an order in which every action follows all that it needs. Throws
  // ArgumentError if ranks wait for each other, and names each such rank's action and what it waits
  // for.
  void Run(const std::function<void(int rank, const PipelineAction& action)>& visit);

 private:
  // What makes the input or gradient that an action needs: {stage, op, micro}; a stage of -1: none.
  struct Need {
    PipelineAction action{.stage = -1};
    bool met = true;
  };
  bool Done(int stage, PipelineOp op, int micro) const;
  void SetDone(const PipelineAction& action);
  Need NeedOf(const PipelineAction& action) const;
  // Makes the rank's next action, if it can be made; says so.
  bool Advance(int rank, const std::function<void(int, const PipelineAction&)>& visit);
  [[noreturn]] void ThrowStuck() const;

  const PipelineSchedule& schedule_;
  bool transfers_ = false;     // whether the schedule has any
  std::vector<uint8_t> done_;  // bits by PipelineOp, of each stage and micro-batch
  std::vector<size_t> next_;   // of each rank
  std::deque<int> ready_;      // ranks that may be able to continue
};

}  // namespace lockstep::dist
