// TCP sockets with deadlines, and nothing more.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "dist/control/file_descriptor.h"
#include "dist/control/store.h"

namespace lockstep::dist {

// No file descriptor is left here, or the store has no room for another client, mostly for want of
// descriptors there; waiting does not help.
class NoDescriptorsError : public StoreError {
 public:
  using StoreError::StoreError;
};

class Socket : public FileDescriptor {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  using FileDescriptor::FileDescriptor;

  // Ends what another thread is waiting for on this socket; the descriptor stays.
  void Shutdown() const;

  // All bytes, before the deadline. StoreError: "the connection was closed", "timed out", ...
  void SendAll(const void* data, size_t bytes, Deadline deadline) const;
  void ReceiveAll(void* data, size_t bytes, Deadline deadline) const;
};

// Listens on a numeric address or a host's name; port 0 picks a free one. StoreError names the
// process that has the port, where that can be found out.
Socket Listen(const std::string& host, int port);
// The next who connects.
Socket Accept(const Socket& listener, Socket::Deadline deadline);
int PortOf(const Socket& socket);
// Tries until the deadline: the server may not be there yet. NoDescriptorsError at once.
Socket Connect(const std::string& host, int port, Socket::Deadline deadline);
// The numeric address of this machine that a connection to the host would come from. Sends nothing.
std::string AddressTowards(const std::string& host, int port);
// What this machine calls itself.
std::string HostName();
// Whether the host's addresses are all of the loopback device.
bool IsLoopback(const std::string& host);

}  // namespace lockstep::dist
