// The algorithms of host groups: which messages an operation sends, and what it does with those it
// receives.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "dist/collective.h"
#include "dist/groups/transport.h"

namespace lockstep::dist {

// Ranks made different calls.
class MismatchError : public Error {
 public:
  MismatchError(const std::string& what, std::vector<int> culprits)
      : Error(what), culprits(std::move(culprits)) {}
  std::vector<int> culprits;
};

// Throws MismatchError, listing which ranks call what, unless all ranks' calls are the same.
// Exchanges are not compared further, since each rank numbers its own.
void CompareCalls(const std::map<int, Collective>& calls);

// What a rank sends to another, and receives from it, in an all_to_all or an exchange.
struct PairTraffic {
  int64_t to_peer = 0, from_peer = 0;             // elements
  uint64_t to_peer_hash = 0, from_peer_hash = 0;  // of dtypes and sizes, in order
};

// Operations over a transport, one at a time: first CheckCall, then the operation itself. Ranks are
// counted within the group, except in errors, which name the world's. Data are contiguous. Except
// for CheckCall, they throw only TransportError.
//
// Every rank talks to every other: an all_reduce is a reduce_scatter and an all_gather, each rank
// sending 2 (W - 1) / W of the bytes, which is what a ring sends, in 2 steps instead of 2 (W - 1).
// Parts are summed in rank order, so that the bits depend neither on an element's position nor on
// how tensors are grouped into calls.
class HostCollectives {
 public:
  using Deadline = Transport::Deadline;

  // With `hashes`, each message is followed by its hash, and a corrupted message causes a
  // TransportError (kCorrupt).
  HostCollectives(Transport& transport, bool hashes);

  // The number of message exchanges of the current operation, including the one in progress: equal
  // on all ranks that are at the same point. Any thread may call it.
  int64_t step() const { return step_; }

  // Tells `peers` (all other ranks, except for an exchange) what this rank is about to call, and
  // throws MismatchError unless they call the same. traffic[p] is that with rank p; empty if there
  // is none.
  void CheckCall(const Collective& c, std::span<const int> peers,
                 std::span<const PairTraffic> traffic, Deadline deadline);

  void AllReduce(ReduceOp op, DType dtype, void* data, int64_t n, Deadline deadline);
  // `n` elements of output, size() * n of input.
  void ReduceScatter(ReduceOp op, DType dtype, const void* input, void* output, int64_t n,
                     Deadline deadline);
  // `n` elements of input, size() * n of output.
  void AllGather(DType dtype, const void* input, void* output, int64_t n, Deadline deadline);
  void Broadcast(void* data, int64_t bytes, int root, Deadline deadline);
  // Counts are in elements, per rank.
  void AllToAll(DType dtype, const void* input, std::span<const int64_t> input_counts, void* output,
                std::span<const int64_t> output_counts, Deadline deadline);
  // Messages to and from ranks of the group.
  void Exchange(std::span<const Transport::Outgoing> outgoing,
                std::span<const Transport::Incoming> incoming, Deadline deadline);

 private:
  // Every rank gets all inputs: for tensors too small to be worth cutting.
  void AllReduceAtOnce(ReduceOp op, DType dtype, std::byte* data, int64_t n, Deadline deadline);
  // reduce_scatter and all_gather of the elements from `data` on.
  void AllReduceInParts(ReduceOp op, DType dtype, std::byte* data, int64_t n, Deadline deadline);

  void Send(int peer, const void* data, int64_t bytes);
  void Receive(int peer, void* data, int64_t bytes);
  // Moves the messages given to Send and Receive.
  void Run(Deadline deadline);
  void CompareHashes(std::span<const Transport::Outgoing> outgoing,
                     std::span<const Transport::Incoming> incoming, Deadline deadline);
  // Memory for incoming messages: size() blocks of `bytes`.
  std::byte* Scratch(int64_t bytes);
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(transport_.members().size()); }
  int Member(int rank) const { return transport_.members()[static_cast<size_t>(rank)]; }

  Transport& transport_;
  const int rank_;
  const bool hashes_;
  std::atomic<int64_t> step_{0};
  std::vector<Transport::Outgoing> outgoing_;
  std::vector<Transport::Incoming> incoming_;
  // Members, not locals: after a failure, messages may still arrive until the transport is closed.
  std::vector<std::byte> scratch_, headers_;
  std::vector<uint64_t> my_hashes_, their_hashes_;
};

}  // namespace lockstep::dist
