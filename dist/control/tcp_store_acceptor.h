// Accepts clients for TcpStoreServer, and tells those for whom there is no room.
#pragma once

#include <chrono>

#include "dist/control/socket.h"

namespace lockstep::dist {

// A process with no descriptor left cannot even refuse a connection, and poll would report it
// forever. So one descriptor is kept in reserve and given up to accept such a connection, tell the
// client, and close it. Not thread-safe.
class TcpStoreAcceptor {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TcpStoreAcceptor(Socket listener);

  // The descriptor to poll for POLLIN; -1 until retry_at(), while polling would be useless.
  int fd() const { return Clock::now() < retry_at_ ? -1 : listener_.fd(); }
  Clock::time_point retry_at() const { return retry_at_; }

  // The next waiting client; an empty socket if there is none or it was turned away, as all are if
  // `full`.
  Socket Accept(bool full);

 private:
  Socket AcceptNow() const;
  void TurnAway(const Socket& socket, int64_t limit);

  const Socket listener_;
  FileDescriptor spare_;
  Clock::time_point retry_at_;
  bool warned_ = false;
};

}  // namespace lockstep::dist
