// Moves bytes between ranks; host groups are built on it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "dist/control/awake_clock.h"

namespace lockstep::dist {

// Why messages did not get through.
class TransportError : public Error {
 public:
  enum class Cause { kLostRank, kTimeout, kInterrupted, kCorrupt };
  TransportError(Cause cause, std::vector<int> peers, const std::string& what)
      : Error(what), cause(cause), peers(std::move(peers)) {}

  Cause cause;
  std::vector<int> peers;  // the world's ranks, whose connections ended, or whose messages are
                           // missing or corrupted
};

// Ranks are the world's. Messages between two ranks arrive in the order in which they were sent;
// both sides know their sizes. Only one thread calls Run; any may call Interrupt and Extend.
class Transport {
 public:
  using Deadline = AwakeClock::time_point;
  struct Outgoing {
    int peer;
    const void* data;
    int64_t bytes;
  };
  struct Incoming {
    int peer;
    void* data;
    int64_t bytes;
  };

  virtual ~Transport() = default;
  // The ranks between which it moves messages, ascending, and this one.
  virtual const std::vector<int>& members() const = 0;
  virtual int rank() const = 0;

  // Moves all messages at the same time; returns when the incoming ones have arrived and the memory
  // of the outgoing ones may be reused. The result is when the last incoming one had arrived.
  // Throws TransportError, after which the transport is unusable, but messages may still arrive
  // until Close.
  virtual AwakeClock::time_point Run(std::span<const Outgoing> outgoing,
                                     std::span<const Incoming> incoming, Deadline deadline) = 0;
  // Call it on the same thread after Run has thrown. Afterwards nothing touches the messages'
  // memory, and this rank is lost to the others.
  virtual void Close() = 0;
  // Makes Run throw from now on.
  virtual void Interrupt() = 0;
  // Makes Run, even one in progress, wait at least until `deadline`.
  virtual void Extend(Deadline deadline) = 0;
  // Another transport, between some of these ranks; all of them call this. `name` must be unique on
  // each of them.
  virtual std::unique_ptr<Transport> Split(const std::string& name, std::vector<int> members) = 0;
};

}  // namespace lockstep::dist
