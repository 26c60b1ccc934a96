#include "dist/control/link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep::dist {
namespace {

using namespace handshake;  // NOLINT

constexpr auto kCloseTime = std::chrono::seconds(1);
constexpr size_t kMaxUnread = 64 * 1024 * 1024;  // bytes
constexpr char kRefused[] =
    "it refuses this rank; is LOCKSTEP_SECRET the same on all ranks? If it is, another program, a "
    "proxy or an address translation stands between the two";

}  // namespace

std::shared_ptr<Link> Link::Accept(EventLoop& loop, Socket socket, const std::string& secret,
                                   Handlers handlers) {
  std::shared_ptr<Link> link(
      new Link(loop, std::move(socket), secret, State::kAwaitsProof, std::move(handlers)));
  link->listener_ = EndpointOf(link->socket_);
  link->nonce_ = RandomNonce();
  Hello hello;
  hello.nonce = link->nonce_;
  link->Put(hello);
  link->Begin(kPatience);
  return link;
}

std::shared_ptr<Link> Link::Dial(EventLoop& loop, const std::string& host, int port,
                                 const std::string& secret, Handlers handlers,
                                 EventLoop::Clock::duration patience) {
  std::shared_ptr<Link> link(
      new Link(loop, Socket(), secret, State::kConnecting, std::move(handlers)));
  try {
    link->socket_ = BeginConnect(host, port);
    link->Begin(patience);
  } catch (const ConnectionError& error) {
    // The caller does not have the link yet.
    const bool none = dynamic_cast<const NoDescriptorsError*>(&error) != nullptr;
    loop.Post([weak = std::weak_ptr<Link>(link), reason = std::string(error.what()), none] {
      if (const auto self = weak.lock()) {
        self->End(reason, none ? Cause::kNoDescriptors : Cause::kEnded);
      }
    });
  }
  return link;
}

Link::Link(EventLoop& loop, Socket socket, std::string secret, State state, Handlers handlers)
    : loop_(loop),
      socket_(std::move(socket)),
      secret_(std::move(secret)),
      state_(state),
      handlers_(std::make_shared<const Handlers>(std::move(handlers))),
      heard_(EventLoop::Clock::now()) {}

Link::~Link() { Release(); }

void Link::Begin(EventLoop::Clock::duration patience) {
  const std::weak_ptr<Link> weak = weak_from_this();
  writes_ = state_ == State::kConnecting;
  loop_.Watch(socket_.fd(), EPOLLIN | (writes_ ? EPOLLOUT : 0u), [weak](uint32_t events) {
    if (const auto self = weak.lock()) self->OnEvents(events);
  });
  timer_ = loop_.After(patience, [weak] {
    if (const auto self = weak.lock()) self->End(self->NoAnswer());
  });
  if (state_ != State::kConnecting) Flush();
}

// Why a handshake has come to nothing.
std::string Link::NoAnswer() const {
  switch (state_) {
    case State::kConnecting:
      return "there is no answer";
    case State::kAwaitsHello:
      return "the program listening there is not Lockstep's";
    case State::kAwaitsMac:
      return kRefused;
    default:
      return "the connection was closed";
  }
}

void Link::OnEvents(uint32_t events) {
  if (state_ == State::kConnecting) {
    int code = 0;
    socklen_t size = sizeof(code);
    getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &code, &size);
    if (code != 0) return End(std::strerror(code));
    listener_ = PeerOf(socket_);
    state_ = State::kAwaitsHello;
  }
  if ((events & EPOLLOUT) != 0 || writes_) Flush();
  if (state_ == State::kEnded) return;
  const bool alive = (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) == 0 || Receive();
  // What arrived before the end counts.
  Read();
  if (!alive) End(NoAnswer());
}

bool Link::Receive() {
  char buffer[64 * 1024];
  while (!one_frame_ || in_.size() < kFrameHeader) {
    const size_t wanted = one_frame_ ? kFrameHeader - in_.size() : sizeof(buffer);
    const ssize_t n = recv(socket_.fd(), buffer, wanted, 0);
    if (n > 0) {
      heard_ = EventLoop::Clock::now();
      in_.append(buffer, static_cast<size_t>(n));
      if (static_cast<size_t>(n) < wanted) return true;
      if (in_.size() > 2 * Frame::kMaxBody) return true;  // the rest after these
    } else if (n == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return true;
}

void Link::Read() {
  if (state_ == State::kClosing) return in_.clear();
  while (state_ == State::kAwaitsHello || state_ == State::kAwaitsProof ||
         state_ == State::kAwaitsMac) {
    if (!Greet()) return;
  }
  size_t at = 0;
  while (state_ == State::kOpen) {
    Frame frame;
    const auto size = Decode(std::string_view(in_).substr(at), &frame);
    if (!size) return End("it breaks the protocol; do all ranks run the same build?");
    if (*size == 0) break;
    at += *size;
    const auto handlers = handlers_;
    handlers->on_frame(std::move(frame));
  }
  in_.erase(0, at);
}

template <class T>
bool Link::Take(T* value) {
  if (in_.size() < sizeof(T)) return false;
  std::memcpy(static_cast<void*>(value), in_.data(), sizeof(T));
  in_.erase(0, sizeof(T));
  return true;
}

template <class T>
void Link::Put(const T& value) {
  out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// One step of the handshake; false while it waits for more, or has ended.
bool Link::Greet() {
  if (state_ == State::kAwaitsHello) {
    Hello hello;
    if (!Take(&hello)) return false;
    if (hello.magic == kNoRoomMagic) {
      End(StrCat("its process has no file descriptor left for this connection; ",
                 DescriptorHint(hello.limit)),
          Cause::kNoRoom);
      return false;
    }
    if (hello.magic != kMagic) {
      End(NoAnswer(), Cause::kHopeless);
      return false;
    }
    nonce_ = hello.nonce;
    proof_.nonce = RandomNonce();
    proof_.mac = MacOf(secret_, "client", listener_, nonce_, proof_.nonce);
    Put(proof_);
    state_ = State::kAwaitsMac;
    Flush();
    return state_ == State::kAwaitsMac;
  }
  if (state_ == State::kAwaitsProof) {
    if (!Take(&proof_)) return false;
    if (proof_.magic != kMagic ||
        !Equal(proof_.mac, MacOf(secret_, "client", listener_, nonce_, proof_.nonce))) {
      // Says so: a connection that merely ends may be tried again.
      Put(Mac{});
      Flush();
      End("it does not know the secret");
      return false;
    }
    Put(MacOf(secret_, "server", listener_, nonce_, proof_.nonce));
  } else {
    Mac mac;
    if (!Take(&mac)) return false;
    if (mac == Mac{}) {
      End(kRefused, Cause::kHopeless);
      return false;
    }
    if (!Equal(mac, MacOf(secret_, "server", listener_, nonce_, proof_.nonce))) {
      End("it does not know the secret; is another program listening there?", Cause::kHopeless);
      return false;
    }
  }
  state_ = State::kOpen;
  loop_.Cancel(std::exchange(timer_, 0));
  Flush();
  const auto handlers = handlers_;
  if (state_ == State::kOpen) handlers->on_open();
  return state_ == State::kOpen;
}

void Link::SetHandlers(Handlers handlers) {
  handlers_ = std::make_shared<const Handlers>(std::move(handlers));
}

Socket Link::TakeSocket() {
  state_ = State::kEnded;
  loop_.Cancel(std::exchange(timer_, 0));
  loop_.Forget(socket_.fd());
  return std::move(socket_);
}

void Link::Send(const Frame& frame) {
  if (state_ != State::kOpen) return;
  if (frame.body.size() > Frame::kMaxBody) return End("a message to it is too long");
  Encode(frame, &out_);
  if (!writes_) Flush();
}

void Link::Flush() {
  while (sent_ < out_.size()) {
    const ssize_t n =
        send(socket_.fd(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      // What arrived before is read first; the end is noticed there.
      out_.clear();
      sent_ = 0;
      break;
    }
  }
  out_.erase(0, std::exchange(sent_, 0));
  if (out_.size() > kMaxUnread) return End("it does not read what it is sent");
  if (const bool writes = !out_.empty(); writes != writes_) {
    writes_ = writes;
    loop_.SetEvents(socket_.fd(), EPOLLIN | (writes ? EPOLLOUT : 0u));
  }
  // Closing at once would discard what is on its way, if the peer has sent something meanwhile.
  if (state_ == State::kClosing && out_.empty()) shutdown(socket_.fd(), SHUT_WR);
}

void Link::Close() {
  if (state_ == State::kEnded || state_ == State::kClosing) return;
  if (state_ != State::kOpen) {
    state_ = State::kEnded;
    return Release();
  }
  state_ = State::kClosing;
  const auto self = shared_from_this();
  timer_ = loop_.After(kCloseTime, [self] {
    self->state_ = State::kEnded;
    self->Release();
  });
  Flush();
}

void Link::End(const std::string& reason, Cause cause) {
  if (state_ == State::kEnded) return;
  const bool told = std::exchange(state_, State::kEnded) == State::kClosing;
  const auto self = shared_from_this();  // the handler may release it
  Release();
  const auto handlers = handlers_;
  if (!told) handlers->on_end(reason, cause);
}

void Link::Release() {
  loop_.Cancel(std::exchange(timer_, 0));
  if (socket_.fd() < 0) return;
  loop_.Forget(socket_.fd());
  socket_ = Socket();
}

}  // namespace lockstep::dist
