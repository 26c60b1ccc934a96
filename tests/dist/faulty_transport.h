// A transport that fails on purpose.
#pragma once

#include <chrono>
#include <memory>

#include "dist/groups/transport.h"

namespace lockstep::dist::test {

struct TransportFault {
  enum class Kind {
    kDelay,       // messages leave late
    kDrop,        // nothing leaves any more, and nobody is told
    kCorrupt,     // one bit of one message is flipped
    kDisconnect,  // all connections end
  };
  Kind kind = Kind::kDelay;
  int64_t at_run = 1;  // at that exchange of messages, or the first after it that sends something
  std::chrono::milliseconds delay{0};
};

std::unique_ptr<Transport> MakeFaultyTransport(std::unique_ptr<Transport> transport,
                                               const TransportFault& fault);

}  // namespace lockstep::dist::test
