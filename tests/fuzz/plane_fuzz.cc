// Hostile peers of a rank's control plane: a stranger, a rank that breaks the protocol or sends its
// messages in any order, a program that listens where rank 0 should, and answers that no rank
// gives. The rank must neither crash nor hang, whatever they send; a stranger learns and changes
// nothing.
//
// The first byte of the input says who the peer is, the others are what it sends.
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "dist/control/control_plane.h"
#include "dist/control/failure_board.h"
#include "dist/control/handshake.h"

namespace lockstep::dist {
namespace {

constexpr char kHost[] = "127.0.0.1", kSecret[] = "secret";
constexpr uint64_t kTopic = 7;

void Require(bool condition) {
  if (!condition) __builtin_trap();
}

void Await(const Socket& socket, short events) {
  pollfd fd = {socket.fd(), events, 0};
  int ready = -1;
  // The fuzzer's alarm interrupts it.
  while (ready < 0) {
    ready = poll(&fd, 1, /*timeout=*/60'000);
    Require(ready >= 0 || errno == EINTR);
  }
  Require(ready == 1);
}

// What the plane does not take is lost.
void Send(const Socket& socket, std::string_view bytes) {
  while (!bytes.empty()) {
    Await(socket, POLLOUT);
    const ssize_t n = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}
template <class T>
void Send(const Socket& socket, const T& value) {
  Send(socket, std::string_view(reinterpret_cast<const char*>(&value), sizeof(value)));
}
void Send(const Socket& socket, const Frame& frame) {
  std::string bytes;
  Encode(frame, &bytes);
  Send(socket, std::string_view(bytes));
}

template <class T>
void Receive(const Socket& socket, T* value) {
  for (auto left = std::as_writable_bytes(std::span(value, 1)); !left.empty();) {
    Await(socket, POLLIN);
    const ssize_t n = recv(socket.fd(), left.data(), left.size(), 0);
    if (n <= 0) throw Error("there is no connection");
    left = left.subspan(static_cast<size_t>(n));
  }
}

// The peer has said everything. Returns how many bytes it gets until the plane ends the connection.
size_t ReceiveUntilTheEnd(const Socket& socket) {
  shutdown(socket.fd(), SHUT_WR);
  char bytes[4096];
  for (size_t all = 0;;) {
    Await(socket, POLLIN);
    const ssize_t n = recv(socket.fd(), bytes, sizeof(bytes), 0);
    if (n <= 0) return all;
    all += static_cast<size_t>(n);
  }
}

const std::shared_ptr<EventLoop>& Loop() {
  static const auto loop = std::make_shared<EventLoop>();
  return loop;
}

// A rank of two. `root_port`: where rank 0 listens, for the other one.
std::unique_ptr<ControlPlane> MakePlane(int rank, Socket listener, int root_port) {
  ControlPlane::Options o;
  o.rank = rank;
  o.claim = Claim::Of(2);
  o.claim.address = kHost;
  o.claim.port = PortOf(listener);
  o.listeners.push_back(std::move(listener));
  o.root = [root_port] { return RootAddress{kHost, root_port, kSecret}; };
  o.heartbeat = std::chrono::milliseconds(0);
  auto plane = std::make_unique<ControlPlane>(Loop(), std::move(o));
  plane->Answer(kTopic, [](const std::string& question) { return question; });
  plane->Subscribe(kTopic, [](int, uint64_t, const std::string&) {});
  plane->OpenData(kTopic, [](int, Socket, std::exception_ptr) {});
  return plane;
}

void ProveAsDialler(const Socket& socket) {
  handshake::Hello hello;
  Receive(socket, &hello);
  handshake::Proof proof;
  proof.nonce = handshake::RandomNonce();
  proof.mac = handshake::MacOf(kSecret, "client", PeerOf(socket), hello.nonce, proof.nonce);
  Send(socket, proof);
  handshake::Mac mac;
  Receive(socket, &mac);
}

void ProveAsListener(const Socket& socket) {
  handshake::Hello hello;
  hello.nonce = handshake::RandomNonce();
  Send(socket, hello);
  handshake::Proof proof;
  Receive(socket, &proof);
  Send(socket, handshake::MacOf(kSecret, "server", EndpointOf(socket), hello.nonce, proof.nonce));
}

enum class Peer { kStranger, kKnowsTheSecret, kChild, kRoot, kOtherListener, kAnswers, kCount };

// At rank 0.
void TryDialler(Peer peer, std::string_view bytes) {
  Socket listener = Listen(kHost, 0);
  const int port = PortOf(listener);
  const auto plane = MakePlane(0, std::move(listener), port);
  const Socket socket = BeginConnect(kHost, port);
  if (peer != Peer::kStranger) ProveAsDialler(socket);
  if (peer == Peer::kChild) {
    Claim claim = Claim::Of(2);
    claim.address = kHost;
    Send(socket, Frame{Frame::Kind::kJoin, 1, 0, 0, 0, claim.ToText()});
  }
  Send(socket, bytes);
  const size_t heard = ReceiveUntilTheEnd(socket);
  if (peer == Peer::kStranger) {
    Require(heard <= sizeof(handshake::Hello) + sizeof(handshake::Mac) && !plane->failure());
  }
}

// At rank 1.
void TryListener(Peer peer, std::string_view bytes) {
  const Socket server = Listen(kHost, 0);
  const auto plane = MakePlane(1, Listen(kHost, 0), PortOf(server));
  Await(server, POLLIN);
  const Socket socket(accept4(server.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (peer == Peer::kRoot) ProveAsListener(socket);
  Send(socket, bytes);
  ReceiveUntilTheEnd(socket);
}

// Of two ranks, which live as long as the fuzzer, the second answers so to all questions.
void TryAnswers(std::string_view bytes) {
  static std::string answer;
  struct Ranks {
    Socket listener = Listen(kHost, 0);
    const int port = PortOf(listener);
    const std::shared_ptr<ControlPlane> root = MakePlane(0, std::move(listener), port);
    const std::shared_ptr<ControlPlane> other = MakePlane(1, Listen(kHost, 0), port);
    Ranks() {
      root->WaitUntilOpen();
      other->Answer(TopicOf("group/board"), [](const std::string&) { return answer; });
    }
  };
  static const Ranks ranks;
  answer = bytes;
  FailureBoard board(ranks.root,
                     {.group = "group", .members = {0, 1}, .on_failure = [](const Failure&) {}});
  for (const auto& [rank, position] : board.Positions().by_rank) Describe(position.call);
  for (const auto& [rank, lost] : board.Lost().by_rank) {
    for (const int other : lost) Require(other >= 0 && other < 2);
  }
  for (const auto& [rank, calls] : board.CallsAt(1).by_rank) {
    Describe(calls.at.value_or(calls.last));
  }
}

void Try(Peer peer, std::string_view bytes) {
  switch (peer) {
    case Peer::kRoot:
    case Peer::kOtherListener:
      return TryListener(peer, bytes);
    case Peer::kAnswers:
      return TryAnswers(bytes);
    default:
      return TryDialler(peer, bytes);
  }
}

}  // namespace
}  // namespace lockstep::dist

// The state of a thread that OpenSSL frees when the process ends, after leaks have been counted.
extern "C" const char* __lsan_default_suppressions() { return "leak:libcrypto.so\n"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lockstep::dist::Peer;
  if (size == 0) return 0;
  try {
    lockstep::dist::Try(static_cast<Peer>(data[0] % static_cast<int>(Peer::kCount)),
                        {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const lockstep::Error&) {
    return -1;  // this machine's ports are all in use for a minute: not an input to keep
  }
  return 0;
}
