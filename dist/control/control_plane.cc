#include "dist/control/control_plane.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "dist/content_hash.h"
#include "dist/control/awake_clock.h"

namespace lockstep::dist {
namespace {

constexpr ControlPlane::Milliseconds kLongestBeat(2000);
// How long a rank waits for rank 0's word on a failure before its own counts.
constexpr auto kWordTime = std::chrono::seconds(3);
// At most this many messages wait for their topic's handler; then the oldest is dropped.
constexpr size_t kMaxEarly = 1 << 16;
// The largest size of each text of a failure, in bytes: it must fit a message, and a reader.
constexpr size_t kMaxText = 32 * 1024;

Failure Shortened(Failure failure) {
  for (std::string* const text : {&failure.reason, &failure.purpose, &failure.group}) {
    if (text->size() > kMaxText) text->replace(kMaxText, std::string::npos, " ...");
  }
  return failure;
}

}  // namespace

uint64_t TopicOf(const std::string& name) {
  // 0 is nobody's.
  return std::max<uint64_t>(1, HashBytes(std::as_bytes(std::span(name))));
}

std::string SilenceClause(const std::vector<int>& silent) {
  if (silent.empty()) return "";
  return StrCat("; ", ListRanks(silent, "does", "do"),
                " not answer (stopped, starved of memory, or cut off from the network)");
}

ControlPlane::ControlPlane(std::shared_ptr<EventLoop> loop, Options options)
    : loop_(std::move(loop)),
      options_(std::move(options)),
      tree_(options_.claim.size, options_.fan_out),
      deadline_(Clock::now() + options_.timeout) {
  const auto heartbeat = options_.heartbeat.count();
  LS_CHECK(heartbeat == 0 || heartbeat >= 100,
           "the heartbeat must be 0 (off) or at least 100 ms, got ", heartbeat, " ms");
  loop_->Post([this] { Begin(); });
}

ControlPlane::~ControlPlane() {
  Leave();
  Cut();
  // What still runs elsewhere, and what that posts.
  loop_->WaitBlocking();
  loop_->Run([] {});
}

void ControlPlane::Cut() {
  loop_->Run([this] {
    cut_ = true;
    for (const EventLoop::Timer timer : timers_) loop_->Cancel(timer);
    timers_.clear();
    for (const auto& acceptor : acceptors_) loop_->Forget(acceptor->fd());
    acceptors_.clear();
    data_.clear();
    for (const auto& [key, link] : dialling_) link->Close();
    dialling_.clear();
    // What is on its way to them still leaves.
    for (auto& [id, guest] : guests_) guest.link->Close();
    for (auto& [rank, child] : children_) child.link->Close();
    if (root_) root_->Close();
    if (parent_) parent_->Close();
    guests_.clear();
    strangers_.clear();
    children_.clear();
    root_ = parent_ = nullptr;
  });
}

void ControlPlane::WaitUntilOpen(const std::function<bool()>& gives_up) {
  constexpr Milliseconds kTick(50);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kTick, [this] { return open_ || failure_; })) {
    if (!gives_up || !gives_up()) continue;
    Post([this] {
      if (state_ != State::kOpen && !failure()) Refuse("the ranks are not to meet any more");
    });
  }
  if (!open_) throw ConnectionError(failure_->reason);
}

EventLoop::Timer ControlPlane::After(Milliseconds delay, std::function<void()> f) {
  const auto timer = std::make_shared<EventLoop::Timer>();
  *timer = loop_->After(delay, [this, timer, f = std::move(f)] {
    timers_.erase(*timer);
    f();
  });
  timers_.insert(*timer);
  return *timer;
}

Link::Handlers ControlPlane::ParentHandlers(std::function<void()> on_open) {
  const int parent = tree_.Parent(rank());
  return {
      .on_open = std::move(on_open),
      .on_frame = [this, parent](Frame frame) { OnFrame(parent, std::move(frame)); },
      .on_end = [this, parent](const std::string& reason, Link::Cause) { OnLost(parent, reason); }};
}

void ControlPlane::OnFrame(int neighbour, Frame frame) {
  const bool from_parent = neighbour == tree_.Parent(rank());
  switch (frame.kind) {
    case Frame::Kind::kReady:
      if (from_parent) return;
      children_[neighbour].ready = true;
      return CheckReady();
    case Frame::Kind::kGo:
      return from_parent ? Open() : void();
    case Frame::Kind::kRefusal:
      return from_parent ? Refuse(frame.body) : void();
    case Frame::Kind::kBye:
      if (from_parent) return;
      children_[neighbour].left = true;
      return CheckLeft();
    case Frame::Kind::kMessage:
    case Frame::Kind::kQuestion:
    case Frame::Kind::kSurvey:
    case Frame::Kind::kAnswer:
      if (frame.from >= size() || frame.to >= size()) return;
      ++traffic_.received;
      return Route(std::move(frame));
    case Frame::Kind::kFail:
    case Frame::Kind::kFailed: {
      if (from_parent != (frame.kind == Frame::Kind::kFailed)) return;
      const auto failure = ParseFailure(frame.body, size());
      if (!failure) return;
      if (from_parent || rank() == 0) return SetFailure(*failure);
      return SendUp(frame);
    }
    case Frame::Kind::kPause:
    case Frame::Kind::kPaused:
      if (from_parent != (frame.kind == Frame::Kind::kPaused) || frame.from >= size()) return;
      ++traffic_.received;
      if (from_parent) return OnPaused(frame);
      return SetPause(neighbour, frame.topic, ReadPause(frame));
    default:
      return;  // a beat: that it came is all
  }
}

void ControlPlane::SendTo(int neighbour, const Frame& frame) {
  if (neighbour == tree_.Parent(rank())) {
    if (parent_) parent_->Send(frame);
    return;
  }
  const auto child = children_.find(neighbour);
  if (child != children_.end()) child->second.link->Send(frame);
}

// Until this rank has reached its parent, rank 0 hears it directly.
void ControlPlane::SendUp(const Frame& frame) {
  if (const std::shared_ptr<Link>& link = root_ ? root_ : parent_) link->Send(frame);
}

void ControlPlane::Broadcast(const Frame& frame) {
  for (const auto& [rank, child] : children_) child.link->Send(frame);
}

void ControlPlane::Route(Frame frame) {
  if (frame.to == rank()) return Deliver(frame);
  if (frame.body.size() > Frame::kMaxBody) {
    return GiveUp(StrCat("its message of ", frame.body.size(), " bytes to rank ", frame.to,
                         " is longer than ", Frame::kMaxBody));
  }
  ++traffic_.sent;
  SendTo(tree_.Next(rank(), frame.to), frame);
}

void ControlPlane::Deliver(const Frame& frame) {
  if (frame.kind == Frame::Kind::kQuestion) {
    return Route({Frame::Kind::kAnswer, rank(), frame.from, frame.topic, frame.number,
                  AnswerHere(frame.topic, frame.body)});
  }
  if (frame.kind == Frame::Kind::kAnswer) return OnAnswer(frame);
  if (frame.kind == Frame::Kind::kSurvey) return rank() == 0 ? OnSurvey(frame) : void();
  const auto handler = handlers_.find(frame.topic);
  if (handler != handlers_.end()) return handler->second(frame.from, frame.number, frame.body);
  if (early_.size() == kMaxEarly) early_.pop_front();
  early_.push_back(frame);
}

void ControlPlane::Send(int to, uint64_t topic, uint64_t number, std::string body) {
  LS_CHECK(to >= 0 && to < size(), "a message to rank ", to, ", of ", size());
  Frame frame{Frame::Kind::kMessage, rank(), to, topic, number, std::move(body)};
  if (loop_->OnLoopThread()) return Route(std::move(frame));
  loop_->Post([this, frame = std::move(frame)] { Route(frame); });
}

void ControlPlane::Subscribe(uint64_t topic, Handler handler) {
  loop_->Run([&] {
    const Handler& here = handlers_[topic] = std::move(handler);
    for (const Frame& frame : early_) {
      if (frame.topic == topic) here(frame.from, frame.number, frame.body);
    }
    std::erase_if(early_, [&](const Frame& frame) { return frame.topic == topic; });
  });
}

void ControlPlane::Unsubscribe(uint64_t topic) {
  loop_->Run([&] {
    handlers_.erase(topic);
    responders_.erase(topic);
  });
}

ControlPlane::Traffic ControlPlane::traffic() {
  Traffic traffic;
  loop_->Run([&] { traffic = traffic_; });
  return traffic;
}

ControlPlane::Milliseconds ControlPlane::BeatTime() const {
  return std::clamp(options_.heartbeat / 6, Milliseconds(1), kLongestBeat);
}

// Beats are a beat apart, and news takes time.
ControlPlane::Milliseconds ControlPlane::Silence() const {
  return options_.heartbeat - 2 * BeatTime();
}

void ControlPlane::Beat() {
  if (failure() || told_) return;
  AwakeClock::now();  // keeps it from taking a quiet time for a stop
  const Frame beat{.from = rank()};
  Broadcast(beat);
  if (parent_) parent_->Send(beat);
  After(BeatTime(), [this] { Beat(); });
  // Counted in beats of this rank: while its process is stopped, as the whole job's may be, there
  // is nothing to hear.
  beats_.push_back(Clock::now());
  const auto most = (Silence() + BeatTime() - Milliseconds(1)) / BeatTime();
  if (std::ssize(beats_) <= most) return;
  const auto silent_since = beats_.front();
  beats_.pop_front();
  std::vector<int> silent;
  for (const auto& [child_rank, child] : children_) {
    if (!child.left && child.link->heard() < silent_since) silent.push_back(child_rank);
  }
  if (parent_ && parent_->heard() < silent_since) silent.push_back(tree_.Parent(rank()));
  const auto seconds = [](Milliseconds time) { return static_cast<double>(time.count()) / 1e3; };
  for (const int neighbour : silent) {
    OnFailed(FailureOf(CollectiveError::Cause::kTimeout, neighbour,
                       StrCat("rank ", neighbour,
                              " is stalled: its process has shown no sign of life for ",
                              seconds(Silence()), " s, with a heartbeat limit of ",
                              seconds(options_.heartbeat),
                              " s (stopped, starved of memory, or cut off from the network)")),
             neighbour);
  }
}

void ControlPlane::OnLost(int neighbour, const std::string& reason) {
  const auto child = children_.find(neighbour);
  const bool left = child != children_.end() ? child->second.left : told_;
  if (left || failure()) return;
  std::string what = StrCat("rank ", neighbour, " is gone: its process ended");
  if (reason != "the connection was closed") what += StrCat(" (", reason, ")");
  OnFailed(FailureOf(CollectiveError::Cause::kLostRank, neighbour, std::move(what)), neighbour);
}

// What this rank has found out about a neighbour, or itself. If it is the parent, this subtree
// learns of it from here, and rank 0 from the parent's parent, or from here if the parent lives
// after all.
void ControlPlane::OnFailed(const Failure& failure, int neighbour) {
  SendUp({.kind = Frame::Kind::kFail, .from = rank(), .body = ToText(Shortened(failure))});
  if (rank() == 0 || neighbour < rank()) SetFailure(failure);
}

void ControlPlane::GiveUp(const std::string& reason) { OnFailed(GivenUp(rank(), reason), rank()); }

void ControlPlane::SetFailure(const Failure& whole) {
  const Failure failure = Shortened(whole);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;
    failure_ = failure;
  }
  changed_.notify_all();
  Broadcast({.kind = Frame::Kind::kFailed, .body = ToText(failure)});
  for (const auto& [id, guest] : guests_) {
    if (guest.rank >= 0 && guest.topic == 0) {
      guest.link->Send({.kind = Frame::Kind::kRefusal, .body = failure.reason});
    }
  }
  if (state_ != State::kOpen) options_.on_open(failure.reason);
  for (const auto& [number, listener] : std::exchange(listeners_, {})) listener(failure);
  CheckLeft();
}

std::optional<Failure> ControlPlane::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

Failure ControlPlane::Fail(const Failure& failure) {
  loop_->Post([this, failure] { OnFailed(failure, rank()); });
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_for(lock, kWordTime, [this] { return failure_.has_value(); })) {
      return *failure_;
    }
  }
  loop_->Run([&] { SetFailure(failure); });
  return *this->failure();
}

int ControlPlane::AddListener(Listener f) {
  const int number = ++last_listener_;
  if (const auto failed = failure()) {
    f(*failed);
    return number;
  }
  loop_->Post([this, number, f = std::move(f)] {
    if (const auto failed = failure()) return f(*failed);
    listeners_[number] = f;
  });
  return number;
}

void ControlPlane::RemoveListener(int number) {
  loop_->Run([&] {
    listeners_.erase(number);
    ticking_.erase(number);
  });
}

int ControlPlane::Every(Milliseconds interval, std::function<void()> f) {
  const int number = ++last_listener_;
  loop_->Run([&] {
    ticking_.insert(number);
    Tick(number, interval, f);
  });
  return number;
}

void ControlPlane::Tick(int number, Milliseconds interval, const std::function<void()>& f) {
  After(interval, [this, number, interval, f] {
    if (!ticking_.contains(number)) return;
    f();
    Tick(number, interval, f);
  });
}

void ControlPlane::Leave() {
  loop_->Post([this, is_thrown = std::uncaught_exceptions() > 0] {
    if (is_thrown && state_ == State::kOpen) GiveUp("an exception ended its part in the run");
    leaving_ = true;
    CheckLeft();
  });
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return left_; });
}

void ControlPlane::CheckLeft() {
  const bool waits =
      !failure() && std::any_of(children_.begin(), children_.end(),
                                [](const auto& child) { return !child.second.left; });
  if (!leaving_ || waits || std::exchange(told_, true)) return;
  if (parent_) parent_->Send({.kind = Frame::Kind::kBye, .from = rank()});
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_ = true;
  }
  changed_.notify_all();
}

}  // namespace lockstep::dist
