#include "dist/groups/tcp_transport.h"

#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "dist/control/awake_clock.h"

namespace lockstep::dist {
namespace {

using Clock = AwakeClock;
using std::chrono::milliseconds;

// How long a rank that has lost a peer continues to send to the others.
constexpr auto kFarewell = milliseconds(200);
// A thread that waits for more than kLarge bytes wakes for each kWakeUp of them, not for each
// packet, which would take time from the threads that compute.
constexpr size_t kLarge = 32 * 1024, kWakeUp = 256 * 1024;

// Messages to or from a peer, as far as they have not been moved.
class Queue {
 public:
  void Add(void* data, int64_t bytes) {
    if (bytes == 0) return;
    parts_.push_back({data, static_cast<size_t>(bytes)});
    bytes_ += static_cast<size_t>(bytes);
  }
  size_t bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }
  msghdr Header() {
    msghdr header = {};
    header.msg_iov = &parts_[first_];
    header.msg_iovlen = std::min<size_t>(parts_.size() - first_, IOV_MAX);
    return header;
  }
  void Remove(size_t bytes) {
    bytes_ -= bytes;
    while (bytes > 0) {
      iovec& part = parts_[first_];
      const size_t n = std::min(bytes, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + n;
      part.iov_len -= n;
      bytes -= n;
      if (part.iov_len == 0) ++first_;
    }
  }

 private:
  std::vector<iovec> parts_;
  size_t first_ = 0;  // that is not done
  size_t bytes_ = 0;
};

// What Run moves between this rank and a peer.
struct Traffic {
  Queue out, in;
  // Whether it is worth trying; false once the socket has refused, until poll reports it.
  bool can_send = true, can_receive = true;

  bool done() const { return out.empty() && in.empty(); }
};

struct Peer {
  bool dialled = false;
  Socket socket;    // once connected
  int wake_up = 1;  // bytes: SO_RCVLOWAT
  bool ended = false;
};

class TcpTransport : public Transport {
 public:
  TcpTransport(std::shared_ptr<ControlPlane> control, const std::string& name,
               std::vector<int> members)
      : control_(std::move(control)),
        members_(std::move(members)),
        topic_(TopicOf(name + "/data")),
        event_(MakeEvent()) {
    for (const int member : members_) peers_[member];
    const bool is_new =
        control_->OpenData(topic_, [this](int peer, Socket socket, std::exception_ptr error) {
          const std::lock_guard<std::mutex> lock(mutex_);
          if (socket.fd() >= 0) arrived_[peer] = std::move(socket);
          if (error) no_connection_[peer] = std::move(error);
          Signal(event_);
        });
    LS_CHECK(is_new, "there is a group '", name, "' already: give each group a name of its own");
  }
  ~TcpTransport() override { TcpTransport::Close(); }

  const std::vector<int>& members() const override { return members_; }
  int rank() const override { return control_->rank(); }

  AwakeClock::time_point Run(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                             Deadline deadline) override {
    std::map<int, Traffic> traffic;
    // Data that are sent are only read.
    for (const auto& m : outgoing) traffic[m.peer].out.Add(const_cast<void*>(m.data), m.bytes);
    for (const auto& m : incoming) traffic[m.peer].in.Add(m.data, m.bytes);
    std::string lost;  // how the first connection ended
    std::optional<Clock::time_point> arrived;
    while (true) {
      const Deadline until = DeadlineUnlessInterrupted(deadline);
      bool sending = false, receiving = false;
      for (auto t = traffic.begin(); t != traffic.end();) {
        std::string error = Move(t->first, &t->second);
        if (!error.empty() && lost.empty()) {
          lost = std::move(error);
          // Others may still wait for what this rank sends, and would take it for lost.
          deadline = std::min(deadline, Clock::now() + kFarewell);
        }
        const bool over = t->second.done() || Of(t->first).ended;
        sending |= !over && !t->second.out.empty();
        receiving |= !over && !t->second.in.empty();
        t = over ? traffic.erase(t) : std::next(t);
      }
      if (!lost.empty() && (!sending || Clock::now() >= deadline)) {
        throw TransportError(TransportError::Cause::kLostRank, Ended(), lost);
      }
      if (!receiving && !arrived) arrived = Clock::now();
      if (traffic.empty()) return *arrived;
      if (Clock::now() >= until) ThrowTimeout(traffic);
      Wait(&traffic, lost.empty() ? until : deadline);
    }
  }

  void Close() override {
    control_->CloseData(topic_);
    for (auto& [peer, p] : peers_) {
      p = Peer();
      p.ended = true;
    }
  }

  void Interrupt() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    interrupted_ = true;
    Signal(event_);
  }

  void Extend(Deadline deadline) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    extended_ = std::max(extended_, deadline);
    Signal(event_);
  }

  std::unique_ptr<Transport> Split(const std::string& name, std::vector<int> members) override {
    return MakeTcpTransport(control_, name, std::move(members));
  }

 private:
  Peer& Of(int peer) { return peers_.at(peer); }

  Deadline DeadlineUnlessInterrupted(Deadline deadline) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (interrupted_) {
      throw TransportError(TransportError::Cause::kInterrupted, {}, "the transport is interrupted");
    }
    return std::max(deadline, extended_);
  }

  // Moves what can be moved without waiting. Returns how the connection ended, if it has.
  std::string Move(int peer, Traffic* t) {
    if (t->done()) return "";
    try {
      if (!IsConnected(peer)) return "";
      const int fd = Of(peer).socket.fd();
      MoveQueue(&t->out, &t->can_send, [fd](const msghdr& header) {
        return sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
      });
      MoveQueue(&t->in, &t->can_receive,
                [fd](msghdr& header) { return recvmsg(fd, &header, MSG_DONTWAIT); });
      return "";
    } catch (const NoDescriptorsError&) {
      throw;  // of this process: not the peer's fault
    } catch (const ConnectionError& e) {
      Of(peer).ended = true;
      return StrCat("its connection to rank ", peer, " ended: ", e.what());
    }
  }

  // move(header): sendmsg or recvmsg.
  template <class F>
  static void MoveQueue(Queue* queue, bool* ready, const F& move) {
    while (*ready && !queue->empty()) {
      const size_t wanted = queue->bytes();
      msghdr header = queue->Header();
      const ssize_t n = move(header);
      if (n > 0) {
        queue->Remove(static_cast<size_t>(n));
      } else if (n == 0) {
        throw ConnectionError("the other side closed it");
      } else if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
        throw ConnectionError(SystemErrorText(errno));
      }
      *ready = n < 0 ? errno == EINTR : static_cast<size_t>(n) == wanted;
    }
  }

  // The one of two ranks with the higher number dials. Throws ConnectionError if there can be no
  // connection.
  bool IsConnected(int peer) {
    Peer& p = Of(peer);
    if (p.ended) throw ConnectionError("it was closed");
    if (p.socket.fd() >= 0) return true;
    if (peer < rank() && !std::exchange(p.dialled, true)) control_->DialData(topic_, peer);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (no_connection_.contains(peer)) std::rethrow_exception(no_connection_[peer]);
    const auto arrived = arrived_.find(peer);
    if (arrived == arrived_.end()) return false;
    p.socket = std::move(arrived->second);
    arrived_.erase(arrived);
    return true;
  }

  // Returns when something can be moved, at the latest at `until`.
  void Wait(std::map<int, Traffic>* traffic, Deadline until) {
    std::vector<pollfd> fds = {{event_.fd(), POLLIN, 0}};
    for (auto& [peer, t] : *traffic) {
      Peer& p = Of(peer);
      pollfd& fd = fds.emplace_back(pollfd{-1, POLLIN, 0});
      if (p.socket.fd() >= 0) {
        SetWakeUp(&p, t.in.bytes());
        fd = {p.socket.fd(),
              static_cast<short>((t.in.empty() ? 0 : POLLIN) | (t.out.empty() ? 0 : POLLOUT)), 0};
      }
    }
    // Looks again soon: this process may be stopped meanwhile.
    const auto time = std::min<Clock::duration>(until - Clock::now(), std::chrono::seconds(1));
    poll(fds.data(), fds.size(), PollTimeout(std::chrono::steady_clock::now() + time));
    eventfd_t ignored;
    if (fds[0].revents != 0) eventfd_read(event_.fd(), &ignored);
    size_t i = 1;
    for (auto& [peer, t] : *traffic) {
      const int events = fds[i++].revents;
      t.can_send |= (events & ~POLLIN) != 0;  // or an error, which sending will report
      t.can_receive |= (events & ~POLLOUT) != 0;
    }
  }

  static void SetWakeUp(Peer* p, size_t bytes) {
    const int wake_up = bytes > kLarge ? static_cast<int>(std::min(bytes, kWakeUp)) : 1;
    if (wake_up == std::exchange(p->wake_up, wake_up)) return;
    setsockopt(p->socket.fd(), SOL_SOCKET, SO_RCVLOWAT, &wake_up, sizeof(wake_up));
  }

  // The peers whose connections have ended.
  std::vector<int> Ended() const {
    std::vector<int> ended;
    for (const auto& [peer, p] : peers_) {
      if (peer != rank() && (p.ended || p.socket.HasEnded())) ended.push_back(peer);
    }
    return ended;
  }

  [[noreturn]] static void ThrowTimeout(const std::map<int, Traffic>& traffic) {
    std::vector<int> peers;
    for (const auto& [peer, t] : traffic) peers.push_back(peer);
    throw TransportError(TransportError::Cause::kTimeout, peers, "messages did not come in time");
  }

  const std::shared_ptr<ControlPlane> control_;
  const std::vector<int> members_;
  const uint64_t topic_;
  // Wakes Run: an interruption, an extension, or a connection that has arrived.
  const FileDescriptor event_;
  std::map<int, Peer> peers_;  // by rank

  std::mutex mutex_;
  std::map<int, Socket> arrived_;                    // connections that Run has yet to take
  std::map<int, std::exception_ptr> no_connection_;  // why there can be none
  bool interrupted_ = false;
  Deadline extended_ = Deadline::min();
};

}  // namespace

std::unique_ptr<Transport> MakeTcpTransport(std::shared_ptr<ControlPlane> control,
                                            const std::string& name, std::vector<int> members) {
  return std::make_unique<TcpTransport>(std::move(control), name, std::move(members));
}

}  // namespace lockstep::dist
