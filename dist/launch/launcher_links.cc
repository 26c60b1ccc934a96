#include "dist/launch/launcher_links.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

#include "core/error.h"
#include "dist/control/socket.h"

namespace lockstep::dist {
namespace {

constexpr std::chrono::seconds kBeat(1);
constexpr std::chrono::milliseconds kRetry(200);

}  // namespace

LauncherLinks::LauncherLinks(const std::string& address, int port, const std::string& secret)
    : event_(MakeEvent()),
      secret_(secret),
      acceptor_(std::make_unique<Acceptor>(
          Listen(address.find(':') == std::string::npos ? "0.0.0.0" : "::", port))) {
  loop_.Run([this] {
    loop_.Watch(acceptor_->fd(), EPOLLIN, [this](uint32_t) { Accept(); });
    Beat();
  });
}

LauncherLinks::LauncherLinks(const std::string& host, int port, const std::string& secret, int node,
                             std::chrono::seconds patience)
    : event_(MakeEvent()),
      secret_(secret),
      host_(host),
      port_(port),
      node_(node),
      deadline_(std::chrono::steady_clock::now() + patience) {
  loop_.Run([this] {
    Dial();
    Beat();
  });
}

LauncherLinks::~LauncherLinks() {
  loop_.Run([this] {
    if (acceptor_) loop_.Forget(acceptor_->fd());
    for (const auto& [guest, link] : links_) link->Close();
    links_.clear();
  });
}

std::string LauncherLinks::OwnAddress(const std::string& host, int port) {
  return AddressTowards(NumericAddress(host), port);
}

void LauncherLinks::Tell(News news) {
  const std::lock_guard<std::mutex> lock(mutex_);
  news_.push_back(std::move(news));
  Signal(event_);
}

std::vector<LauncherLinks::News> LauncherLinks::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(event_.fd(), &count, sizeof(count));
  return std::exchange(news_, {});
}

void LauncherLinks::Send(int node, const std::string& text) {
  loop_.Post([this, node, text] {
    const auto found = by_node_.find(node);
    if (found == by_node_.end()) return;
    links_.at(found->second)->Send({.kind = Frame::Kind::kMessage, .from = node_, .body = text});
  });
}

Link::Handlers LauncherLinks::Handlers(uint64_t guest) {
  return {
      .on_open =
          [this, guest] {
            if (acceptor_) return;
            by_node_[0] = guest;
            Tell({.node = 0});  // it is there
          },
      .on_frame = [this, guest](Frame frame) { OnFrame(guest, frame); },
      .on_end = [this, guest](const std::string& reason, Link::Cause) { OnEnd(guest, reason); }};
}

void LauncherLinks::Accept() {
  Socket socket = acceptor_->Accept();
  if (socket.fd() < 0) return;
  const uint64_t guest = ++last_;
  links_[guest] = Link::Accept(loop_, std::move(socket), secret_, Handlers(guest));
}

void LauncherLinks::Dial() {
  const uint64_t guest = ++last_;
  links_[guest] = Link::Dial(loop_, host_, port_, secret_, Handlers(guest));
}

void LauncherLinks::OnFrame(uint64_t guest, const Frame& frame) {
  if (!acceptor_ && frame.kind == Frame::Kind::kRefusal) {
    by_node_.clear();
    refused_ = true;
    Tell({.node = 0, .text = frame.body, .gone = true, .refused = true});
  }
  if (frame.kind != Frame::Kind::kMessage) return;
  const int node = acceptor_ ? frame.from : 0;
  if (acceptor_ && by_node_.emplace(node, guest).first->second != guest) {
    links_.at(guest)->Send(
        {.kind = Frame::Kind::kRefusal,
         .body = StrCat("another launcher is machine ", node,
                        " already: give each machine a --node_rank of its own, from 0")});
    links_.at(guest)->Close();
    links_.erase(guest);
    return;
  }
  Tell({.node = node, .text = frame.body});
}

void LauncherLinks::OnEnd(uint64_t guest, const std::string& reason) {
  links_.erase(guest);
  for (const auto& [node, of_node] : by_node_) {
    if (of_node != guest) continue;
    Tell({.node = node, .text = reason, .gone = true});
    by_node_.erase(node);
    return;
  }
  if (acceptor_ || refused_) return;
  if (std::chrono::steady_clock::now() < deadline_) {
    loop_.After(kRetry, [this] { Dial(); });
  } else {
    Tell({.node = 0, .text = reason, .gone = true});
  }
}

// Also finds out who is silent.
void LauncherLinks::Beat() {
  const auto silence = kSilence + (acceptor_ ? kFence : std::chrono::seconds(0));
  const auto now = EventLoop::Clock::now();
  std::vector<uint64_t> silent;
  for (const auto& [guest, link] : links_) {
    if (!link->open()) continue;
    link->Send({.kind = Frame::Kind::kBeat, .from = node_});
    if (now - link->heard() > silence) silent.push_back(guest);
  }
  for (const uint64_t guest : silent) {
    links_.at(guest)->Close();
    OnEnd(guest, "it does not answer any more");
  }
  loop_.After(kBeat, [this] { Beat(); });
}

}  // namespace lockstep::dist
