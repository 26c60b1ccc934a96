// ControlPlane: work of a rank for which others wait. See control_plane.h.
#include <algorithm>
#include <utility>

#include "dist/control/control_plane.h"

namespace lockstep::dist {
namespace {

// The largest age of a pause when it is declared.
constexpr ControlPlane::Milliseconds kLongestAge = std::chrono::hours(1);
// After which a rank says what has changed: if all of W ranks pause again and again, all of them
// hear of it a few times, not W times, and nobody hears of a shorter pause.
constexpr ControlPlane::Milliseconds kInterval(50);
constexpr size_t kMostWords = 1024;  // bytes

}  // namespace

std::string Describe(const DeclaredPause& pause) {
  return StrCat("rank ", pause.rank, " has been ", pause.what, " for ", pause.age.count() / 1000,
                " s");
}

void ControlPlane::BeginPause(const std::string& what, uint64_t topic) {
  const std::lock_guard<std::mutex> lock(mutex_);  // also orders what is posted
  if (pauses_here_[topic]++ > 0) return;
  loop_->Post([this, topic, pause = Paused{rank(), what.substr(0, kMostWords), Clock::now()}] {
    SetPause(rank(), topic, pause);
  });
}

void ControlPlane::EndPause(uint64_t topic) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto here = pauses_here_.find(topic);
  if (here == pauses_here_.end() || --here->second > 0) return;
  pauses_here_.erase(here);
  loop_->Post([this, topic] { SetPause(rank(), topic, std::nullopt); });
}

// nullopt: there is none any more.
std::optional<ControlPlane::Paused> ControlPlane::ReadPause(const Frame& frame) {
  if (frame.body.empty()) return std::nullopt;
  const Milliseconds age(std::min<uint64_t>(frame.number, kLongestAge.count()));
  return Paused{frame.from, frame.body, Clock::now() - age};
}

// `of`: this rank, or the child below which it is the longest one.
void ControlPlane::SetPause(int of, uint64_t topic, std::optional<Paused> pause) {
  PausesBelow& below = pauses_below_[topic];
  below.longest.erase(of);
  if (pause) below.longest.emplace(of, std::move(*pause));
  if (!std::exchange(below.waits, true)) After(kInterval, [this, topic] { TellPause(topic); });
}

// Says which is the longest of the subtree, if that has changed.
void ControlPlane::TellPause(uint64_t topic) {
  PausesBelow& below = pauses_below_[topic];
  below.waits = false;
  std::optional<Paused> pause;
  for (const auto& [of, other] : below.longest) {
    if (!pause || other.since < pause->since) pause = other;
  }
  const bool is_news = std::exchange(below.told, pause) != pause;
  if (!pause) pauses_below_.erase(topic);
  if (!is_news) return;
  Frame frame{.kind = Frame::Kind::kPause, .from = rank(), .topic = topic};
  if (pause) {
    const auto age = std::chrono::duration_cast<Milliseconds>(Clock::now() - pause->since);
    frame.from = pause->rank;
    frame.number = static_cast<uint64_t>(age.count());
    frame.body = pause->what;
  }
  if (rank() == 0) return OnPaused(frame);
  ++traffic_.sent;
  if (parent_) parent_->Send(frame);
}

// From rank 0 to all.
void ControlPlane::OnPaused(const Frame& frame) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    pauses_.erase(frame.topic);
    if (const auto pause = ReadPause(frame)) pauses_.emplace(frame.topic, *pause);
  }
  traffic_.sent += std::ssize(children_);
  Broadcast({Frame::Kind::kPaused, frame.from, 0, frame.topic, frame.number, frame.body});
}

std::optional<DeclaredPause> ControlPlane::pause(uint64_t topic) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::optional<DeclaredPause> longest;
  for (const uint64_t of : {uint64_t{0}, topic}) {
    const auto pause = pauses_.find(of);
    if (pause == pauses_.end()) continue;
    const auto& [paused, what, since] = pause->second;
    const auto age = std::chrono::duration_cast<Milliseconds>(Clock::now() - since);
    if (!longest || age > longest->age) longest = DeclaredPause{paused, what, age};
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
