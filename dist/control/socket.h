// TCP sockets with deadlines, and nothing more.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "dist/control/file_descriptor.h"
#include "dist/control/store.h"

namespace lockstep::dist {

// This process has no file descriptor left, or the store cannot take another client, usually
// because its process has none left. Waiting does not help.
class NoDescriptorsError : public StoreError {
 public:
  using StoreError::StoreError;
};

class Socket : public FileDescriptor {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  using FileDescriptor::FileDescriptor;

  // Ends another thread's wait on this socket; the descriptor stays open.
  void Shutdown() const;

  // All bytes, before the deadline. StoreError: "the connection was closed", "timed out", ...
  void SendAll(const void* data, size_t bytes, Deadline deadline) const;
  void ReceiveAll(void* data, size_t bytes, Deadline deadline) const;
};

// Listens on a numeric address or a host name; port 0 picks a free port. If the port is in use,
// StoreError names the process that has it, if that can be found out.
Socket Listen(const std::string& host, int port);
// The next connection.
Socket Accept(const Socket& listener, Socket::Deadline deadline);
int PortOf(const Socket& socket);
// Retries until the deadline: the server may not be up yet. Throws NoDescriptorsError at once.
Socket Connect(const std::string& host, int port, Socket::Deadline deadline);
// The numeric address of this machine from which it would connect to the host. Sends nothing.
std::string AddressTowards(const std::string& host, int port);
// This machine's name.
std::string HostName();
// Whether all of the host's addresses are loopback addresses.
bool IsLoopback(const std::string& host);

}  // namespace lockstep::dist
