// TCP sockets, and nothing more.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "dist/control/file_descriptor.h"

namespace lockstep::dist {

// Another process cannot be reached, refuses this one, or has ended.
class ConnectionError : public Error {
 public:
  using Error::Error;
};

// This process, or the other one, has no file descriptor left. Waiting does not help.
class NoDescriptorsError : public ConnectionError {
 public:
  using ConnectionError::ConnectionError;
};

// Sends small messages at once (TCP_NODELAY), as do the sockets that it accepts.
class Socket : public FileDescriptor {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  using FileDescriptor::FileDescriptor;

  // Whether the other side has closed the connection, even if there are bytes left to read.
  bool HasEnded() const;
};

// Listens on a numeric address or a host name; port 0 picks a free port. If the port is in use,
// ConnectionError names the process that has it, if that can be found out.
Socket Listen(const std::string& host, int port);
int PortOf(const Socket& socket);
// The address and port of an end of a connection, as the system knows it, in one form: IPv4 within
// IPv6, and without an interface ("%eth0"), whose name is each machine's own. Zeros if it has none.
using Endpoint = std::array<std::byte, 18>;
Endpoint EndpointOf(const Socket& socket);
Endpoint PeerOf(const Socket& socket);
// Does not wait. The server's first bytes, or the error, arrive at the socket. `host` is numeric.
Socket BeginConnect(const std::string& host, int port);
// The first address of a host, in numbers. Throws ConnectionError if the name is unknown.
std::string NumericAddress(const std::string& host);
// The numeric address of this machine from which it would connect to the host. Sends nothing.
std::string AddressTowards(const std::string& host, int port);
// The names of this machine's network interfaces and their numeric addresses, those of IPv4 first.
std::vector<std::pair<std::string, std::string>> InterfaceAddresses();
// The numeric address of a network interface of this machine ("eth0"), IPv4 if it has one.
std::string AddressOfInterface(const std::string& name);
// That by which other machines reach this one, as far as it can be told here: the one of its route
// to everywhere or, without such a route, of its first interface. Throws ConnectionError if it has
// none but those of the loopback device.
std::string OutwardAddress();
// This machine's name.
std::string HostName();
// Whether all of the host's addresses are loopback addresses.
bool IsLoopback(const std::string& host);
// Whether it is a name that this machine has given itself, at an address of its loopback device, as
// Debian does (127.0.1.1, in /etc/hosts): other machines know another address of it.
bool IsOwnName(const std::string& host);
// A non-blocking eventfd: a descriptor that poll reports as readable after Signal.
FileDescriptor MakeEvent();
void Signal(const FileDescriptor& event);
// The time left, in milliseconds as poll wants it: rounded up, at most a minute.
int PollTimeout(Socket::Deadline deadline);

}  // namespace lockstep::dist
