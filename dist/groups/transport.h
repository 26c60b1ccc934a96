// Bytes between ranks: what the groups of the host are built on.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace lockstep::dist {

// Why messages did not get through.
class TransportError : public Error {
 public:
  enum class Cause { kLostRank, kTimeout, kInterrupted, kCorrupt };
  TransportError(Cause cause, std::vector<int> peers, const std::string& what)
      : Error(what), cause(cause), peers(std::move(peers)) {}

  Cause cause;
  std::vector<int> peers;  // whose connections have ended, or whose messages did not come, or not
                           // as they were sent
};

// Messages between two ranks are received in the order in which they were sent; both sides know
// their sizes. Run is called by one thread, Interrupt and Extend by any.
class Transport {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
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
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Moves all at the same time and returns when they have come, and the memory of those sent may be
  // written again. Throws TransportError; the transport is of no use after that, but messages may
  // still come until Close.
  virtual void Run(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                   Deadline deadline) = 0;
  // After Run has thrown, by the same thread: nobody touches the messages' memory any more. The
  // others lose this rank.
  virtual void Close() = 0;
  // Run throws from now on.
  virtual void Interrupt() = 0;
  // Run, also one that is under way, waits until then where its deadline is earlier.
  virtual void Extend(Deadline deadline) = 0;
  // Another transport between the same ranks; collective. `name` is different for each.
  virtual std::unique_ptr<Transport> Duplicate(const std::string& name) = 0;
};

}  // namespace lockstep::dist
