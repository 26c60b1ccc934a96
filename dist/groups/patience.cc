#include "dist/groups/patience.h"

#include <utility>

namespace lockstep::dist {

Patience::Patience(std::shared_ptr<ControlPlane> control, const GroupOptions& options)
    : control_(std::move(control)),
      topic_(TopicOf(options.name)),
      timeout_(options.timeout),
      say_(options.say) {}

void Patience::Begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  since_ = Clock::now();
}

void Patience::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  since_.reset();
}

std::optional<Patience::Clock::time_point> Patience::since() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return since_;
}

bool Patience::Renew() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!since_ || Clock::now() < *since_ + timeout_ / 2) return false;
  }
  const auto pause = control_->pause(topic_);
  if (!pause || pause->age > kLongestPause) return false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!since_) return false;
    since_ = Clock::now();
  }
  const bool tells = say_ && control_->rank() == (pause->rank == 0 ? 1 : 0);
  if (tells && control_->MayReportPause(timeout_ / 2)) {
    say_(StrCat(Describe(*pause), "; the other ranks wait for it"));
  }
  return true;
}

bool Patience::IsOver() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return since_ && Clock::now() > *since_ + timeout_;
}

std::string Patience::PauseClause() const {
  const auto pause = control_->pause(topic_);
  return pause ? StrCat("; ", Describe(*pause)) : "";
}

}  // namespace lockstep::dist
