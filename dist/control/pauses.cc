// ControlPlane: work of a rank for which others wait. See control_plane.h.
#include <algorithm>
#include <utility>

#include "dist/control/control_plane.h"

namespace lockstep::dist {
namespace {

// Of a pause, when it is declared.
constexpr ControlPlane::Milliseconds kLongestAge = std::chrono::hours(1);

}  // namespace

std::string Describe(const DeclaredPause& pause) {
  return StrCat("rank ", pause.rank, " has been ", pause.what, " for ", pause.age.count() / 1000,
                " s");
}

void ControlPlane::BeginPause(const std::string& what, uint64_t topic, Milliseconds delay) {
  const std::lock_guard<std::mutex> lock(mutex_);  // also orders what is said
  PausedHere& here = pauses_here_[topic];
  if (here.depth++ > 0) return;
  here.number = ++last_pause_;
  here.pause = {what, Clock::now()};
  here.told = delay.count() == 0;
  if (here.told) return SayPause(topic, what, here.pause.since);
  loop_->Post([this, topic, delay, number = here.number] {
    After(delay, [this, topic, number] { SayPauseIfItLasts(topic, number); });
  });
}

void ControlPlane::SayPauseIfItLasts(uint64_t topic, uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto here = pauses_here_.find(topic);
  if (here == pauses_here_.end() || here->second.number != number) return;
  here->second.told = true;
  SayPause(topic, here->second.pause.what, here->second.pause.since);
}

void ControlPlane::EndPause(uint64_t topic) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto here = pauses_here_.find(topic);
  if (here == pauses_here_.end() || --here->second.depth > 0) return;
  if (here->second.told) SayPause(topic, "", {});
  pauses_here_.erase(here);
}

void ControlPlane::SayPause(uint64_t topic, const std::string& what, Clock::time_point since) {
  loop_->Post([this, topic, what, since] {
    const auto age = std::chrono::duration_cast<Milliseconds>(Clock::now() - since);
    OnPause({.kind = Frame::Kind::kPause,
             .from = rank(),
             .topic = topic,
             .number = what.empty() ? 0 : static_cast<uint64_t>(age.count()),
             .body = what});
  });
}

// From the rank that pauses to rank 0, and from there to all.
void ControlPlane::OnPause(const Frame& frame) {
  if (frame.kind == Frame::Kind::kPause && rank() != 0) {
    if (parent_) parent_->Send(frame);
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::pair key(frame.from, frame.topic);
    if (frame.body.empty()) {
      pauses_.erase(key);
    } else {
      const Milliseconds age(std::min<uint64_t>(frame.number, kLongestAge.count()));
      pauses_[key] = {frame.body, Clock::now() - age};
    }
  }
  Frame told = frame;
  told.kind = Frame::Kind::kPaused;
  Broadcast(told);
}

std::optional<DeclaredPause> ControlPlane::pause(uint64_t topic) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::optional<DeclaredPause> longest;
  for (const auto& [key, pause] : pauses_) {
    const auto [paused, of] = key;
    if (of != 0 && of != topic) continue;
    const auto age = std::chrono::duration_cast<Milliseconds>(Clock::now() - pause.since);
    if (!longest || age > longest->age) longest = DeclaredPause{paused, pause.what, age};
  }
  return longest;
}

bool ControlPlane::MayReportPause(Milliseconds interval) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (last_report_ && Clock::now() - *last_report_ < interval) return false;
  last_report_ = Clock::now();
  return true;
}

}  // namespace lockstep::dist
