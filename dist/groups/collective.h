// What one operation of a process group is, as ranks compare it and errors name it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"

namespace lockstep::dist {

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kExchange,  // sends and receives
  kBarrier,
  kLeave,  // a rank's group is being destroyed
};

// "all_reduce", "reduce_scatter", ...
std::string_view Name(CollectiveKind kind);
// "sum", "max", "min"
std::string_view Name(ReduceOp op);

// All ranks of a group must call the same Collectives in the same order.
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kU8;
  int root = 0;
  // Elements: of the tensor (all_reduce, broadcast), or of one rank's part (reduce_scatter,
  // all_gather, all_to_all; -1 where the parts differ).
  int64_t count = 0;
  // From 1, counted by each rank.
  int64_t sequence = 0;

  bool operator==(const Collective&) const = default;
};

// "all_reduce #7 (f32[1024], sum)", "broadcast #3 (i64[2], from rank 0)", "barrier #2"
std::string Describe(const Collective& c);

// As numbers, for those who compare or send it; FromValues gives nothing for values that no
// collective has.
inline constexpr size_t kCollectiveValues = 6;
std::array<int64_t, kCollectiveValues> ToValues(const Collective& c);
std::optional<Collective> CollectiveFromValues(std::span<const int64_t> values);

// What usually makes ranks call such different things, as a sentence to put behind the error: a
// collective inside `if (rank == 0)`, less data on one rank, another configuration. "" where
// nothing comes to mind.
std::string LikelyMistake(const std::map<int, Collective>& calls);

// "rank 1", "ranks 0, 2 and 3", of many "... and 5 more".
std::string ListRanks(std::span<const int> ranks);

// The arrangement that kinds, order, dtypes and counts of a sequence of calls amount to: equal
// sequences have equal hashes.
uint64_t Extend(uint64_t hash, const Collective& c);

// An operation that did not happen, on every rank of the group that can still be reached. what()
// names the rank that says it, the group, the operation with its sequence number, the cause and the
// ranks at fault. The group is of no use after it: its calls throw the same cause.
class CollectiveError : public Error {
 public:
  enum class Cause {
    kMismatch,  // ranks called different operations
    kTimeout,   // ranks did not take part in time
    kLostRank,  // a rank's process or connection is gone
    kAborted,   // a rank gave up: Abort, or its group was destroyed by an exception
    kCorrupt,   // a message did not come as it was sent
  };

  CollectiveError(const std::string& what, Cause cause, int rank, Collective operation,
                  std::vector<int> culprits)
      : Error(what),
        cause_(cause),
        rank_(rank),
        operation_(operation),
        culprits_(std::move(culprits)) {}

  Cause cause() const { return cause_; }
  int rank() const { return rank_; }  // that throws
  const Collective& operation() const { return operation_; }
  int64_t sequence() const { return operation_.sequence; }
  // Ranks at fault, ascending; empty if unknown.
  const std::vector<int>& culprits() const { return culprits_; }

 private:
  Cause cause_;
  int rank_;
  Collective operation_;
  std::vector<int> culprits_;
};

}  // namespace lockstep::dist
