// ControlPlane: how ranks meet. See control_plane.h.
#include <sys/epoll.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>

#include "core/io/json.h"
#include "dist/control/control_plane.h"

namespace lockstep::dist {
namespace {

constexpr ControlPlane::Milliseconds kFirstPause(20), kLongestPause(1000);
constexpr ControlPlane::Milliseconds kFirstPatience(50);
// Connections that have not said which rank they are, beyond those of ranks that are yet to come:
// at most this many, and no more than this share of the descriptors.
constexpr size_t kStrangers = 128;
constexpr size_t kStrangersShare = 4;
// A rank gives up a little after rank 0, whose error says more.
constexpr ControlPlane::Milliseconds kGrace(2000);
// Who waits for longer says so: ranks that are started together are there by then.
constexpr ControlPlane::Milliseconds kSilentWait(10'000);
// A refusal that only this rank gets, and may ask again: this rank 0 is that of an earlier run.
constexpr uint64_t kStale = 1;

}  // namespace

void ControlPlane::Begin() {
  AnswerAddress();
  AnswerWaits();
  for (Socket& listener : options_.listeners) {
    Acceptor* const acceptor =
        acceptors_.emplace_back(std::make_unique<Acceptor>(std::move(listener))).get();
    loop_->Watch(acceptor->fd(), EPOLLIN, [this, acceptor](uint32_t) { Accept(acceptor); });
  }
  const auto left = std::chrono::duration_cast<Milliseconds>(deadline_ - Clock::now());
  After(left + (rank() == 0 ? Milliseconds(0) : kGrace), [this] { OnDeadline(); });
  const Milliseconds silent = std::min(kSilentWait, left / 2);
  After(silent, [this, silent] { TellMissing(silent); });
  obstacle_ = "rank 0 has not been found";
  if (rank() != 0) return DialRoot();
  claims_[0] = {options_.claim, 0};
  if (options_.root) {
    const RootAddress root = options_.root();
    secret_ = root.secret;
    root_text_ = StrCat(root.host, ":", root.port);
  }
  if (size() == 1) Open();
}

void ControlPlane::Accept(Acceptor* acceptor) {
  Socket socket = acceptor->Accept();
  if (acceptor->retry_at() > Clock::now()) {  // without descriptors, the same event would return
    const int fd = acceptor->fd();
    loop_->SetEvents(fd, 0);
    After(Milliseconds(100), [this, fd] { loop_->SetEvents(fd, EPOLLIN); });
  }
  if (socket.fd() < 0) return;
  // The oldest stranger makes room: ranks say who they are at once.
  const bool meets = rank() == 0 && state_ == State::kMeeting;
  const size_t expected = meets ? static_cast<size_t>(size()) - claims_.size() : 0;
  const size_t share = static_cast<size_t>(DescriptorLimit()) / kStrangersShare;
  if (strangers_.size() >= std::clamp<size_t>(share, 1, expected + kStrangers)) {
    Dismiss(*strangers_.begin());
  }
  const uint64_t id = ++last_guest_;
  Link::Handlers handlers;
  handlers.on_frame = [this, id](const Frame& frame) { OnGuestFrame(id, frame); };
  handlers.on_end = [this, id](const std::string& reason, Link::Cause) { OnGuestEnd(id, reason); };
  guests_[id].link = Link::Accept(*loop_, std::move(socket), secret_, std::move(handlers));
  strangers_.insert(id);
}

void ControlPlane::Dismiss(uint64_t id) {
  const Guest& guest = guests_.at(id);
  const auto claim = claims_.find(guest.rank);
  // Until all have come, another process may take its place.
  if (state_ == State::kMeeting && claim != claims_.end() && claim->second.second == id) {
    claims_.erase(claim);
  }
  guest.link->Close();
  strangers_.erase(id);
  guests_.erase(id);
}

ControlPlane::Guest& ControlPlane::Name(uint64_t id, int rank) {
  Guest& guest = guests_.at(id);
  guest.rank = rank;
  strangers_.erase(id);
  return guest;
}

void ControlPlane::OnGuestEnd(uint64_t id, const std::string& reason) {
  const auto guest = guests_.find(id);
  if (guest == guests_.end()) return;
  // A child that was attached before this rank was welcomed: Adopt will see that it is gone.
  if (state_ == State::kMeeting && !guest->second.meeting.empty()) return;
  const bool was_welcomed = rank() == 0 && state_ == State::kAttaching && guest->second.topic == 0;
  const int who = guest->second.rank;
  Dismiss(id);
  if (was_welcomed && who > 0) OnLost(who, reason);
}

void ControlPlane::OnGuestFrame(uint64_t id, const Frame& frame) {
  const Guest& guest = guests_.at(id);
  const bool has_joined = rank() == 0 && guest.rank > 0 && guest.topic == 0;
  if (frame.kind == Frame::Kind::kFail && has_joined && state_ == State::kAttaching) {
    const auto failure = ParseFailure(frame.body, size());
    return failure ? SetFailure(*failure) : void();
  }
  if (frame.kind == Frame::Kind::kJoin) return OnJoin(id, frame);
  if (frame.kind == Frame::Kind::kAttach && frame.from < size()) return OnAttach(id, frame);
  if (frame.kind == Frame::Kind::kData && frame.from < size()) return OnData(id, frame);
  Dismiss(id);
}

void ControlPlane::OnJoin(uint64_t id, const Frame& frame) {
  const auto claim = Claim::Parse(frame.body);
  Guest& guest = guests_.at(id);
  const bool can_be = rank() == 0 && claim && frame.from > 0 && guest.rank < 0;
  // A rank of another world size is told so below.
  if (!can_be || (claim->size == size() && frame.from >= size())) return Dismiss(id);
  const auto there = claims_.find(frame.from);
  if (const auto failed = failure()) {
    return guest.link->Send({.kind = Frame::Kind::kRefusal, .body = failed->reason});
  }
  if (state_ != State::kMeeting) {
    const std::string who = there == claims_.end()
                                ? ""
                                : StrCat(", rank ", frame.from, " is ", there->second.first.Who());
    return guest.link->Send({.kind = Frame::Kind::kRefusal,
                             .number = kStale,
                             .body = StrCat("its ranks have met already", who)});
  }
  Name(id, frame.from);
  const std::string contradiction = Contradiction(0, options_.claim, frame.from, *claim);
  if (!contradiction.empty()) return Refuse(contradiction);
  if (there != claims_.end()) {
    return Refuse(StrCat("the environment contradicts itself: rank ", frame.from, " is claimed by ",
                         there->second.first.Who(), " and by ", claim->Who(),
                         "; each process needs a ", options_.rank_variable, " of its own"));
  }
  claims_[frame.from] = {*claim, id};
  if (std::ssize(claims_) == size()) Welcome();
}

void ControlPlane::Welcome() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    meeting_ = options_.claim.meeting;
  }
  state_ = State::kAttaching;
  for (const auto& [joined, claim_and_guest] : claims_) {
    if (joined == 0) continue;
    const uint64_t id = claim_and_guest.second;
    const Claim& parent = claims_.at(tree_.Parent(joined)).first;
    guests_.at(id).link->Send({.kind = Frame::Kind::kWelcome,
                               .to = joined,
                               .body = Json{{"meeting", options_.claim.meeting},
                                            {"address", parent.address},
                                            {"port", parent.port}}
                                           .dump()});
    // The others leave when they have reached their parents.
    if (tree_.Parent(joined) == 0) Adopt(joined, id);
  }
}

void ControlPlane::OnAttach(uint64_t id, const Frame& frame) {
  if (tree_.Parent(frame.from) != rank() || guests_.at(id).rank >= 0) return Dismiss(id);
  if (state_ == State::kMeeting) {  // this rank has yet to be welcomed
    Name(id, frame.from).meeting = frame.body;
  } else if (frame.body == meeting_ && !children_.contains(frame.from)) {
    Adopt(frame.from, id);
  } else {
    Dismiss(id);
  }
}

void ControlPlane::Adopt(int child, uint64_t id) {
  std::shared_ptr<Link> link = guests_.extract(id).mapped().link;
  strangers_.erase(id);
  link->SetHandlers(
      {.on_frame = [this, child](Frame frame) { OnFrame(child, std::move(frame)); },
       .on_end = [this, child](const std::string& reason, Link::Cause) { OnLost(child, reason); }});
  if (const auto failed = failure()) {
    link->Send({.kind = Frame::Kind::kFailed, .body = ToText(*failed)});
  }
  const bool is_gone = !link->open();
  children_[child].link = std::move(link);
  if (is_gone) OnLost(child, "the connection was closed");
}

std::string ControlPlane::RootName() const {
  return root_text_.empty() ? "rank 0" : StrCat("rank 0 at ", root_text_);
}

void ControlPlane::DialRoot() {
  ++attempts_;
  loop_->PostBlocking([this] {
    std::optional<RootAddress> root;
    std::string error;
    try {
      root = options_.root();
    } catch (const Error& e) {
      error = e.what();
    }
    loop_->Post([this, root, error] {
      if (cut_ || failure()) return;
      if (root) return JoinAt(*root);
      Retry(StrCat(RootName(), " cannot be joined: ", error), Link::Cause::kEnded,
            &ControlPlane::DialRoot);
    });
  });
}

void ControlPlane::JoinAt(const RootAddress& root) {
  secret_ = root.secret;
  root_text_ = StrCat(root.host, ":", root.port);
  if (attempts_ == 1) obstacle_ = StrCat(RootName(), " has not answered");
  const auto retry = [this](const std::string& reason, Link::Cause cause) {
    Retry(StrCat(RootName(), " cannot be joined: ", reason), cause, &ControlPlane::DialRoot);
  };
  Link::Handlers handlers;
  handlers.on_open = [this] {
    obstacle_ = StrCat(RootName(), " was joined, but has not said that all ranks have come");
    root_->Send({.kind = Frame::Kind::kJoin, .from = rank(), .body = options_.claim.ToText()});
  };
  handlers.on_frame = [this, retry](const Frame& frame) {
    if (frame.kind == Frame::Kind::kWelcome) return OnWelcome(frame);
    if (frame.kind != Frame::Kind::kRefusal) return;
    if (frame.number != kStale) return Refuse(frame.body);
    root_->Close();
    retry(frame.body, Link::Cause::kEnded);
  };
  handlers.on_end = [retry, uncertain = root.uncertain](const std::string& reason,
                                                        Link::Cause cause) {
    const bool may_be_elsewhere = uncertain && cause == Link::Cause::kHopeless;
    retry(reason, may_be_elsewhere ? Link::Cause::kEnded : cause);
  };
  // A program that is not rank 0 may never answer.
  const Clock::duration patience =
      root.uncertain ? std::min<Clock::duration>(Link::kPatience, kFirstPatience * attempts_)
                     : Link::kPatience;
  root_ = Link::Dial(*loop_, root.host, root.port, root.secret, std::move(handlers), patience);
}

// At random, because thousands of ranks may do the same.
ControlPlane::Milliseconds ControlPlane::RetryDelay(int attempts) {
  static thread_local std::minstd_rand random(std::random_device{}());
  const auto most =
      std::min(kLongestPause, kFirstPause * (1 << std::min(attempts / 4, 10))).count();
  return Milliseconds(std::uniform_int_distribution<int64_t>(most / 2, most)(random));
}

void ControlPlane::Retry(const std::string& obstacle, Link::Cause cause,
                         void (ControlPlane::*dial)()) {
  obstacle_ = obstacle;
  if (cause == Link::Cause::kHopeless || cause == Link::Cause::kNoDescriptors) return OnDeadline();
  After(RetryDelay(attempts_), [this, dial] {
    if (!failure()) (this->*dial)();
  });
}

void ControlPlane::OnWelcome(const Frame& frame) {
  try {
    const Json body = TryParseJson(frame.body);
    const std::lock_guard<std::mutex> lock(mutex_);
    meeting_ = body.at("meeting").get<std::string>();
    parent_address_ = body.at("address").get<std::string>();
    parent_port_ = static_cast<int>(IntegerOf(body.at("port"), 0, 65535));
  } catch (const std::exception&) {
    return Refuse("rank 0 speaks another version of the protocol; run the same build on all ranks");
  }
  state_ = State::kAttaching;
  attempts_ = 0;
  obstacle_ = StrCat(RootName(), " has not said that all ranks have reached each other");
  if (tree_.Parent(rank()) == 0) {
    parent_ = std::exchange(root_, nullptr);
    parent_->SetHandlers(ParentHandlers([] {}));
  } else {
    root_->SetHandlers(
        {.on_frame =
             [this](const Frame& news) {
               if (news.kind == Frame::Kind::kRefusal) Refuse(news.body);
             },
         .on_end = [this](const std::string& reason, Link::Cause) { OnLost(0, reason); }});
    DialParent();
  }
  // Children that have been faster.
  std::vector<std::pair<int, uint64_t>> early;
  for (const auto& [id, guest] : guests_) {
    if (guest.rank >= 0 && guest.meeting == meeting_) early.emplace_back(guest.rank, id);
  }
  for (const auto& [child, id] : early) Adopt(child, id);
  CheckReady();
}

void ControlPlane::DialParent() {
  const std::string parent =
      StrCat("rank ", tree_.Parent(rank()), " at ", parent_address_, ":", parent_port_);
  if (++attempts_ == 1) obstacle_ = parent + " has not answered";
  Link::Handlers handlers = ParentHandlers([this] {
    parent_->Send({.kind = Frame::Kind::kAttach, .from = rank(), .body = meeting_});
    root_->Send({.kind = Frame::Kind::kBye, .from = rank()});
    root_->Close();
    root_ = nullptr;
    obstacle_ = StrCat(RootName(), " has not said that all ranks have reached each other");
    CheckReady();
  });
  // Until it is attached it may try again.
  handlers.on_end = [this, parent, lost = handlers.on_end](const std::string& reason,
                                                           Link::Cause cause) {
    if (root_ == nullptr) return lost(reason, cause);
    Retry(StrCat(parent, " cannot be reached: ", reason), cause, &ControlPlane::DialParent);
  };
  parent_ = Link::Dial(*loop_, parent_address_, parent_port_, secret_, std::move(handlers));
}

void ControlPlane::CheckReady() {
  const std::vector<int> children = tree_.Children(rank());
  const bool ready =
      state_ == State::kAttaching && std::all_of(children.begin(), children.end(), [&](int child) {
        return children_.contains(child) && children_.at(child).ready;
      });
  if (!ready) return;
  if (rank() == 0) return Open();
  if (root_ == nullptr && parent_ && parent_->open()) {
    parent_->Send({.kind = Frame::Kind::kReady, .from = rank()});
  }
}

void ControlPlane::Open() {
  if (state_ == State::kOpen || failure()) return;
  state_ = State::kOpen;
  Broadcast({.kind = Frame::Kind::kGo});
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (size() == 1) meeting_ = options_.claim.meeting;
    open_ = true;
  }
  changed_.notify_all();
  options_.on_open("");
  if (options_.heartbeat.count() > 0) Beat();
}

// On rank 0: those that have not come.
std::vector<int> ControlPlane::MissingRanks() const {
  std::vector<int> missing;
  for (int r = 1; r < size(); ++r) {
    if (state_ == State::kMeeting && !claims_.contains(r)) missing.push_back(r);
  }
  return missing;
}

// Of ranks that have joined, rank 0 speaks.
void ControlPlane::TellMissing(Milliseconds waited) {
  const bool has_joined = root_ && root_->open();
  if (state_ != State::kMeeting || failure() || has_joined) return;
  const std::string what = rank() == 0 ? StrCat("for ", ListRanks(MissingRanks()), " of ", size(),
                                                " to reach ", RootName())
                                       : StrCat("(", obstacle_, ")");
  std::fprintf(stderr, "rank %d has waited for %.0f s %s%s\n", rank(),
               std::chrono::duration<double>(waited).count(), what.c_str(), options_.hint.c_str());
}

void ControlPlane::OnDeadline() {
  if (state_ == State::kOpen || failure()) return;
  if (rank() != 0) return Refuse(obstacle_ + options_.hint);
  std::vector<int> missing = MissingRanks();
  if (!missing.empty()) {
    return Refuse(StrCat(ListRanks(missing), " of ", size(), " did not reach ", RootName(),
                         " in time", options_.hint));
  }
  for (const int child : tree_.Children(0)) {
    if (!children_.contains(child) || !children_.at(child).ready) missing.push_back(child);
  }
  Refuse(StrCat("the ranks below ", ListRanks(missing),
                " did not reach each other in time: can all machines reach each other at the "
                "addresses of LOCKSTEP_INTERFACE?"));
}

// Ends the meeting; on rank 0, and once all have come, for all that have.
void ControlPlane::Refuse(const std::string& reason) {
  const Failure failure{.rank = rank(), .reason = reason};
  if (state_ == State::kAttaching) OnFailed(failure, rank());
  SetFailure(failure);
}

}  // namespace lockstep::dist
