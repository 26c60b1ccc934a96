// A transport that fails on purpose.
#pragma once

#include <chrono>
#include <memory>

#include "dist/groups/transport.h"

namespace lockstep::dist::test {

struct TransportFault {
  enum class Kind {
    kDelay,       // messages are sent late
    kDrop,        // messages are silently lost from now on
    kCorrupt,     // one bit of one message is flipped
    kDisconnect,  // all connections end
  };
  Kind kind = Kind::kDelay;
  int64_t at_run = 1;  // the message exchange to fail, or the next one that sends
  std::chrono::milliseconds delay{0};
};

std::unique_ptr<Transport> MakeFaultyTransport(std::unique_ptr<Transport> transport,
                                               const TransportFault& fault);

}  // namespace lockstep::dist::test
