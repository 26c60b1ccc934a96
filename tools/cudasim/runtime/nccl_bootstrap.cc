// How ranks find each other: the unique id holds the port of a thread that waits for all of them
// and sends each rank the ports of the others.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "nccl_mesh.h"

namespace cudasim::runtime {
namespace {

constexpr uint32_t kMagic = 0x6e63636c;
constexpr int kTickMs = 20;  // How often a waiting thread checks whether it is aborted.

struct IdContent {
  uint32_t magic;
  uint16_t port;
  uint64_t nonce;
};
static_assert(sizeof(IdContent) <= NCCL_UNIQUE_ID_BYTES);

// A rank's message to the root.
struct Hello {
  uint64_t nonce;
  int32_t rank;
  int32_t ranks;
  int32_t device;
  int32_t process;
  uint16_t port;
};

// A rank's message to another rank.
struct Greeting {
  uint64_t nonce;
  int32_t rank;
};

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// A listening socket, or -1.
int Listen(uint16_t* port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  constexpr int kBacklog = 1024;
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener, kBacklog) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    if (listener >= 0) close(listener);
    return -1;
  }
  *port = ntohs(address.sin_port);
  return listener;
}

int Dial(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

using Stopped = std::function<bool()>;

// Waits until the socket can be read; false if stopped.
bool WaitReadable(int fd, const Stopped& stopped) {
  while (!stopped()) {
    pollfd one = {fd, POLLIN, 0};
    if (poll(&one, 1, kTickMs) > 0) return true;
  }
  return false;
}

bool ReadAll(int fd, void* data, size_t size, const Stopped& stopped) {
  auto* to = static_cast<char*>(data);
  while (size > 0) {
    if (!WaitReadable(fd, stopped)) return false;
    const ssize_t got = recv(fd, to, size, 0);
    if (got <= 0) return false;
    to += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool WriteAll(int fd, const void* data, size_t size) {
  const auto* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd, from, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    from += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

// The root's answer: ncclSuccess and the ports by rank, or an error.
ncclResult_t Judge(const std::vector<Hello>& hellos, const Hello& now) {
  if (now.ranks <= 0 || now.rank < 0 || now.rank >= now.ranks) return ncclInvalidArgument;
  for (const Hello& other : hellos) {
    if (other.ranks != now.ranks || other.rank == now.rank) return ncclInvalidArgument;
    if (other.process == now.process && other.device == now.device) return ncclInvalidUsage;
  }
  return ncclSuccess;
}

void RunRoot(int listener, uint64_t nonce) {
  std::vector<Hello> hellos;
  std::vector<int> sockets;
  ncclResult_t verdict = ncclSuccess;
  const Stopped never = [] { return false; };
  while (hellos.empty() || static_cast<int>(hellos.size()) < hellos[0].ranks) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0 && errno == EINTR) continue;
    if (fd < 0) break;
    Hello hello;
    if (!ReadAll(fd, &hello, sizeof(hello), never) || hello.nonce != nonce) {
      close(fd);
      continue;
    }
    verdict = Judge(hellos, hello);
    hellos.push_back(hello);
    sockets.push_back(fd);
    if (verdict != ncclSuccess) break;
  }
  std::vector<uint16_t> ports(hellos.size());
  if (verdict == ncclSuccess) {
    for (const Hello& hello : hellos) ports[hello.rank] = hello.port;
  }
  for (const int fd : sockets) {
    const auto result = static_cast<int32_t>(verdict);
    if (WriteAll(fd, &result, sizeof(result)) && verdict == ncclSuccess) {
      WriteAll(fd, ports.data(), ports.size() * sizeof(ports[0]));
    }
    close(fd);
  }
  close(listener);
}

}  // namespace

ncclResult_t MakeUniqueId(ncclUniqueId* id) {
  IdContent content = {};
  content.magic = kMagic;
  std::random_device random;
  content.nonce = (uint64_t{random()} << 32) | random();
  const int listener = Listen(&content.port);
  if (listener < 0) return ncclSystemError;
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id, &content, sizeof(content));
  std::thread(RunRoot, listener, content.nonce).detach();
  return ncclSuccess;
}

ncclResult_t Mesh::Accept(int listener, uint64_t nonce) {
  const Stopped stopped = [this] { return aborted(); };
  for (int missing = ranks() - 1 - rank_; missing > 0; --missing) {
    if (!WaitReadable(listener, stopped)) return Fail(ncclInternalError, "aborted");
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    Greeting greeting;
    if (fd < 0 || !ReadAll(fd, &greeting, sizeof(greeting), stopped) || greeting.nonce != nonce ||
        greeting.rank <= rank_ || greeting.rank >= ranks()) {
      if (fd >= 0) close(fd);
      return Fail(ncclRemoteError, "something else connected to the port");
    }
    sockets_[greeting.rank] = fd;
  }
  return ncclSuccess;
}

ncclResult_t Mesh::Connect(const ncclUniqueId& id, int device) {
  IdContent content;
  std::memcpy(&content, &id, sizeof(content));
  if (content.magic != kMagic) return Fail(ncclInvalidArgument, "not an id from ncclGetUniqueId");
  uint16_t port = 0;
  const int listener = Listen(&port);
  const int root = Dial(content.port);
  const Hello hello = {content.nonce, rank_, ranks(), device, getpid(), port};
  const Stopped stopped = [this] { return aborted(); };
  int32_t verdict = ncclSystemError;
  std::vector<uint16_t> ports(ranks());
  bool met = listener >= 0 && root >= 0 && WriteAll(root, &hello, sizeof(hello)) &&
             ReadAll(root, &verdict, sizeof(verdict), stopped);
  const bool welcome = met && verdict == ncclSuccess;
  if (welcome) met = ReadAll(root, ports.data(), ports.size() * sizeof(ports[0]), stopped);
  if (root >= 0) close(root);
  ncclResult_t result = ncclSuccess;
  if (!met) {
    result = Fail(ncclSystemError, "the process that created the unique id does not answer");
  } else if (!welcome) {
    result = Fail(static_cast<ncclResult_t>(verdict),
                  verdict == ncclInvalidUsage
                      ? "two ranks of a process use the same device"
                      : "the ranks disagree about their number, or two have the same rank");
  }
  for (int peer = 0; peer < rank_ && result == ncclSuccess; ++peer) {
    sockets_[peer] = Dial(ports[peer]);
    const Greeting greeting = {content.nonce, rank_};
    if (sockets_[peer] < 0 || !WriteAll(sockets_[peer], &greeting, sizeof(greeting))) {
      result = Fail(ncclRemoteError, "rank " + std::to_string(peer) + " cannot be reached");
    }
  }
  if (result == ncclSuccess) result = Accept(listener, content.nonce);
  if (listener >= 0) close(listener);
  for (const int fd : sockets_) {
    const int on = 1;
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return result;
}

}  // namespace cudasim::runtime
