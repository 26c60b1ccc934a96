#include "dist/control/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

namespace fs = std::filesystem;

// Inodes of the sockets that listen on the port: /proc/net/tcp, columns 2 (address:port in hex), 4
// (state; 0A listens) and 10.
std::set<std::string> ListeningInodes(int port) {
  std::set<std::string> inodes;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string word[10];
      for (std::string& w : word) words >> w;
      const size_t colon = word[1].rfind(':');
      if (colon == std::string::npos || word[3] != "0A") continue;
      if (std::stoi(word[1].substr(colon + 1), nullptr, 16) == port) inodes.insert(word[9]);
    }
  }
  return inodes;
}

bool HasSocket(const fs::path& process, const std::set<std::string>& inodes) {
  // Ignore errors: processes end, and those of other users hide their descriptors.
  std::error_code error;
  for (fs::directory_iterator fd(process / "fd", error), end; !error && fd != end;
       fd.increment(error)) {
    std::error_code closed;
    const std::string target = fs::read_symlink(fd->path(), closed);
    if (target.rfind("socket:[", 0) == 0 &&
        inodes.count(target.substr(8, target.size() - 9)) != 0) {
      return true;
    }
  }
  return false;
}

// ", which process 1234 (python3) is using", from /proc; empty if it cannot be found out.
std::string OwnerOfPort(int port) {
  const std::set<std::string> inodes = ListeningInodes(port);
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    const std::string pid = process->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!HasSocket(process->path(), inodes)) continue;
    std::ifstream file(process->path() / "comm");
    std::string name;
    std::getline(file, name);
    return StrCat(", which process ", pid, " (", name, ") is using");
  }
  return "";
}

// NoDescriptorsError where that is the reason, else a ConnectionError that begins with `what`.
[[noreturn]] void ThrowErrno(const std::string& what) {
  const int code = errno;
  const std::string reason = SystemErrorText(code);
  if (IsOutOfDescriptors(code)) throw NoDescriptorsError(reason);
  throw ConnectionError(StrCat(what, ": ", reason));
}

Addresses Resolve(const std::string& host, int port, int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (code != 0) {
    if (code == EAI_SYSTEM && IsOutOfDescriptors(errno)) ThrowErrno("getaddrinfo");
    throw ConnectionError(StrCat("the host '", host, "' cannot be resolved: ", gai_strerror(code)));
  }
  return Addresses(list, freeaddrinfo);
}

Socket OpenLike(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd() < 0) ThrowErrno("socket");
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return socket;
}

std::string Numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = {};
  if (getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

// read: getsockname or getpeername.
Endpoint ReadEndpoint(int (*read)(int, sockaddr*, socklen_t*), int fd) {
  sockaddr_in6 v6 = {};
  socklen_t size = sizeof(v6);
  Endpoint end = {};
  if (read(fd, reinterpret_cast<sockaddr*>(&v6), &size) != 0) return end;
  if (v6.sin6_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &v6, sizeof(v4));
    end[10] = end[11] = std::byte{0xff};
    std::memcpy(&end[12], &v4.sin_addr, sizeof(v4.sin_addr));
    std::memcpy(&end[16], &v4.sin_port, sizeof(v4.sin_port));
  } else {
    std::memcpy(&end[0], &v6.sin6_addr, sizeof(v6.sin6_addr));
    std::memcpy(&end[16], &v6.sin6_port, sizeof(v6.sin6_port));
  }
  return end;
}

}  // namespace

bool Socket::HasEnded() const {
  pollfd p = {fd(), POLLRDHUP, 0};
  return poll(&p, 1, /*timeout=*/0) == 1;
}

Socket Listen(const std::string& host, int port) {
  const Addresses addresses = Resolve(host, port, AI_PASSIVE | AI_NUMERICSERV);
  Socket socket = OpenLike(*addresses);
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.fd(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(socket.fd(), SOMAXCONN) != 0) {
    const int code = errno;
    std::string hint;
    if (code == EADDRINUSE) hint = OwnerOfPort(port) + "; choose another MASTER_PORT";
    if (code == EADDRNOTAVAIL) hint = "; MASTER_ADDR must be an address of the machine of rank 0";
    throw ConnectionError(
        StrCat("cannot listen on ", host, ":", port, ": ", std::strerror(code), hint));
  }
  return socket;
}

Endpoint EndpointOf(const Socket& socket) { return ReadEndpoint(getsockname, socket.fd()); }
Endpoint PeerOf(const Socket& socket) { return ReadEndpoint(getpeername, socket.fd()); }

int PortOf(const Socket& socket) {
  const Endpoint end = EndpointOf(socket);
  return std::to_integer<int>(end[16]) << 8 | std::to_integer<int>(end[17]);
}

Socket BeginConnect(const std::string& host, int port) {
  const Addresses addresses = Resolve(host, port, AI_NUMERICHOST | AI_NUMERICSERV);
  Socket socket = OpenLike(*addresses);
  if (connect(socket.fd(), addresses->ai_addr, addresses->ai_addrlen) != 0 &&
      errno != EINPROGRESS) {
    ThrowErrno(StrCat("cannot connect to ", host, ":", port));
  }
  return socket;
}

std::string NumericAddress(const std::string& host) {
  const Addresses addresses = Resolve(host, 0, AI_NUMERICSERV);
  return Numeric(addresses->ai_addr, addresses->ai_addrlen);
}

std::string AddressTowards(const std::string& host, int port) {
  const Addresses addresses = Resolve(host, port, AI_NUMERICSERV);
  const FileDescriptor probe(::socket(addresses->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  std::string text;
  if (probe.fd() < 0 || connect(probe.fd(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      getsockname(probe.fd(), reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      (text = Numeric(reinterpret_cast<const sockaddr*>(&own), size)).empty()) {
    ThrowErrno(StrCat("there is no route from this machine to ", host));
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> InterfaceAddresses() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) ThrowErrno("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  std::vector<std::pair<std::string, std::string>> found;
  for (const int family : {AF_INET, AF_INET6}) {
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family) continue;
      found.emplace_back(i->ifa_name, Numeric(i->ifa_addr, size));
    }
  }
  return found;
}

std::string AddressOfInterface(const std::string& name) {
  std::set<std::string> names;
  for (const auto& [interface, address] : InterfaceAddresses()) {
    if (interface == name) return address;
    names.insert(interface);
  }
  std::string list;
  for (const std::string& n : names) list += StrCat(list.empty() ? "" : ", ", n);
  throw ConnectionError(StrCat("LOCKSTEP_INTERFACE: this machine has no network interface '", name,
                               "' with an address; those that have one: ", list));
}

std::string OutwardAddress() {
  try {
    return AddressTowards("192.0.2.1", /*port=*/9);  // nobody's (RFC 5737); nothing is sent
  } catch (const NoDescriptorsError&) {
    throw;
  } catch (const ConnectionError&) {
  }
  for (const auto& [name, address] : InterfaceAddresses()) {
    if (!IsLoopback(address)) return address;
  }
  throw ConnectionError("this machine has no address at which others could reach it");
}

std::string HostName() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

bool IsLoopback(const std::string& host) {
  const Addresses addresses = Resolve(host, 0, AI_NUMERICSERV);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    if (a->ai_family == AF_INET) {
      const auto* in = reinterpret_cast<const sockaddr_in*>(a->ai_addr);
      if ((ntohl(in->sin_addr.s_addr) >> 24) != 127) return false;
    } else {
      const auto* in = reinterpret_cast<const sockaddr_in6*>(a->ai_addr);
      if (!IN6_IS_ADDR_LOOPBACK(&in->sin6_addr)) return false;
    }
  }
  return true;
}

bool IsOwnName(const std::string& host) {
  std::array<std::byte, sizeof(in6_addr)> address;
  const bool is_numeric = inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
                          inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
  return !is_numeric && host != "localhost" && IsLoopback(host);
}

FileDescriptor MakeEvent() {
  FileDescriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event.fd() < 0) ThrowErrno("eventfd");
  return event;
}

void Signal(const FileDescriptor& event) { eventfd_write(event.fd(), 1); }

int PollTimeout(Socket::Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace lockstep::dist
