#include "core/autograd/step_replay.h"

#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

thread_local StepReplay::Recording* innermost_recording = nullptr;
thread_local StepReplay::Replaying* replaying = nullptr;

}  // namespace

StepReplay::Recording::Recording(StepReplay& replay)
    : replay_(replay), outer_(std::exchange(innermost_recording, this)) {
  if (const StepState* state = CurrentStepState()) replay_.state_ = *state;
}
StepReplay::Recording::~Recording() { innermost_recording = outer_; }

void StepReplay::Recording::NoteDraw() {
  for (Recording* r = innermost_recording; r != nullptr; r = r->outer_) {
    if (!std::exchange(r->copied_, true)) r->replay_.state_ = StepState::OfThread()->Copy();
  }
}

void StepReplay::Recording::NoteSite(uint64_t site) {
  for (Recording* r = innermost_recording; r != nullptr; r = r->outer_) {
    r->replay_.sites_.push_back(site);
  }
}

StepReplay::Replaying::Replaying(const StepReplay& replay)
    : replay_(replay),
      state_(std::exchange(StepState::OfThread(), replay.state_ ? &*replay.state_ : nullptr)),
      recording_(std::exchange(innermost_recording, nullptr)),
      previous_(std::exchange(replaying, this)) {}
StepReplay::Replaying::~Replaying() {
  StepState::OfThread() = state_;
  innermost_recording = recording_;
  replaying = previous_;
}

StepReplay::Replaying* StepReplay::Replaying::OfThisThread() { return replaying; }

uint64_t StepReplay::Replaying::NextSite() {
  LS_CHECK(next_ < replay_.sites_.size(), "a module that is recomputed draws random numbers ",
           next_ + 1, " times, but in forward it did so ", next_,
           " times: it must do the same each time");
  return replay_.sites_[next_++];
}

}  // namespace lockstep
