// The door of TcpStoreServer: takes in clients, and tells those for whom there is no room.
#pragma once

#include <chrono>

#include "dist/control/socket.h"

namespace lockstep::dist {

// A process that has no descriptor left cannot even refuse a connection, which would make poll say
// forever that there is one. So one descriptor is kept, in whose place such a connection is taken
// in, told and closed. Not thread-safe.
class TcpStoreAcceptor {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TcpStoreAcceptor(Socket listener);

  // What to poll for POLLIN; -1 until retry_at(), where there is no use in it.
  int fd() const { return Clock::now() < retry_at_ ? -1 : listener_.fd(); }
  Clock::time_point retry_at() const { return retry_at_; }

  // The next one that waits; none where there is none, or it was turned away: always, if `full`.
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
