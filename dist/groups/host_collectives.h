// The algorithms of host groups: which messages an operation sends, and what it does with those it
// receives.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <optional>
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
// Throws MismatchError unless the ranks, which make the same call, make it for the same purpose, of
// which these are hashes: tensors of other blocks of a model are often of equal size.
void ComparePurposes(const std::map<int, uint64_t>& purposes);

// What a rank sends to another, and receives from it, in an all_to_all or an exchange.
struct PairTraffic {
  int64_t to_peer = 0, from_peer = 0;             // elements
  uint64_t to_peer_hash = 0, from_peer_hash = 0;  // of dtypes and sizes, in order
};

// Operations over a transport, one at a time: first the check of the call, then the operation
// itself. Ranks are counted within the group, except in errors, which name the world's. Data are
// contiguous. Except for the checks, they throw only TransportError.
//
// What all ranks hear of all (checks, all_gather, small all_reduces) travels in rounds, in which a
// rank passes on what it has heard so far (dissemination; Bruck et al., "Efficient algorithms for
// all-to-all communications", 1997): up to 8 ranks all talk to each other in one round; beyond, a
// rank sends at most 7 messages in each of log8 W rounds, always to the same ranks.
//
// Otherwise every rank talks to every other: a large all_reduce is a reduce_scatter and an
// all_gather of its parts, each rank sending 2 (W - 1) / W of the bytes, which is what a ring
// sends, in 2 steps instead of 2 (W - 1). Parts are summed in rank order, so that the bits depend
// neither on an element's position nor on how tensors are grouped into calls.
class HostCollectives {
 public:
  using Deadline = Transport::Deadline;

  // With `hashes`, each message is followed by its hash, and a corrupted message causes a
  // TransportError (kCorrupt).
  HostCollectives(Transport& transport, bool hashes);

  // The number of message exchanges of the current operation, including the one in progress: equal
  // on all ranks that are at the same point. Any thread may call it.
  int64_t step() const { return step_; }
  // Work::Span::receiving of the current operation.
  AwakeClock::duration receiving() const { return receiving_.value_or(AwakeClock::duration()); }

  // Tells the others what this rank is about to call. Returns once all are about to call something,
  // on all ranks the same: whether all call the same. Where it can tell who calls what, it throws
  // MismatchError instead. `purpose`: a hash of what the call is for, which must be the same too.
  // traffic[p] is that with rank p; empty if it follows from the call.
  bool CheckCall(const Collective& c, uint64_t purpose, std::span<const PairTraffic> traffic,
                 Deadline deadline);
  // The same for an exchange, with its peers only.
  void CheckExchange(const Collective& c, std::span<const int> peers,
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
  static constexpr int kFanOut = 8;

  // Tells some ranks what this one calls and, with `same`, that it has heard of nothing else; hears
  // it from others. Returns whether they call the same, and have heard of nothing else.
  bool CompareHeaders(const Collective& c, uint64_t purpose, std::span<const int> to,
                      std::span<const int> from, std::span<const PairTraffic> traffic, bool same,
                      Deadline deadline);
  // All ranks get the blocks of all, in rank order; each has its own there.
  void Gather(std::byte* blocks, int64_t bytes, Deadline deadline);
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
  // The rank that is so far from this one, |far| < size().
  int RankAt(int64_t far) const { return static_cast<int>((rank_ + far + size()) % size()); }
  int Member(int rank) const { return transport_.members()[static_cast<size_t>(rank)]; }

  Transport& transport_;
  const int rank_;
  const bool hashes_;
  std::atomic<int64_t> step_{0};
  std::optional<AwakeClock::duration> receiving_;  // none until the check is over
  std::vector<Transport::Outgoing> outgoing_;
  std::vector<Transport::Incoming> incoming_;
  // Members, not locals: after a failure, messages may still arrive until the transport is closed.
  std::vector<std::byte> scratch_, headers_;
  std::vector<uint64_t> my_hashes_, their_hashes_;
};

}  // namespace lockstep::dist
