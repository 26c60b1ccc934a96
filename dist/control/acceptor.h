// Accepts connections, and tells those for whom there is no room.
#pragma once

#include <chrono>

#include "dist/control/socket.h"

namespace lockstep::dist {

// A process with no descriptor left cannot even refuse a connection, and poll would report it
// forever. So one descriptor is kept in reserve and given up to accept such a connection, tell the
// client, and close it. Not thread-safe.
class Acceptor {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Acceptor(Socket listener);

  // The descriptor to watch.
  int fd() const { return listener_.fd(); }
  // Until when watching would be useless.
  Clock::time_point retry_at() const { return retry_at_; }

  // The next connection; an empty socket if there is none or it was turned away.
  Socket Accept();

 private:
  Socket AcceptNow() const;
  void TurnAway(const Socket& socket, int64_t limit);

  const Socket listener_;
  FileDescriptor spare_;
  Clock::time_point retry_at_;
  bool warned_ = false;
};

}  // namespace lockstep::dist
