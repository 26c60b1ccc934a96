// The description of a process group's operation that ranks compare and errors show.
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
  kLeave,  // the rank's group is being destroyed
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
  int root = 0;  // the world's rank
  // The number of elements of the tensor (all_reduce, broadcast) or of one rank's part
  // (reduce_scatter, all_gather, all_to_all; -1 if the parts differ).
  int64_t count = 0;
  // Counts from 1 on each rank.
  int64_t sequence = 0;

  bool operator==(const Collective&) const = default;
};

// "all_reduce #7 (f32[1024], sum)", "broadcast #3 (i64[2], from rank 0)", "barrier #2"; "start" for
// sequence 0: before the first call.
std::string Describe(const Collective& c);
// The same with what it is for: "all_reduce #7 (f32[1024], sum) of bucket 1 ('wte.weight')".
std::string Describe(const Collective& c, const std::string& purpose);

// Conversion to and from numbers, for comparing and sending; nullopt for values that no collective
// has.
inline constexpr size_t kCollectiveValues = 6;
std::array<int64_t, kCollectiveValues> ToValues(const Collective& c);
std::optional<Collective> CollectiveFromValues(std::span<const int64_t> values);

// A sentence to append to the error that says what usually makes ranks' calls differ in this way: a
// collective inside `if (rank == 0)`, less data on one rank, another configuration. "" if there is
// no typical cause.
std::string LikelyMistake(const std::map<int, Collective>& calls);

// "rank 1", "ranks 0, 2 and 3"; long lists end in "and 5 more".
std::string ListRanks(std::span<const int> ranks);
// With what they do: "rank 1 waits", "ranks 0 and 2 wait".
std::string ListRanks(std::span<const int> ranks, const char* one_does, const char* they_do);

// 0, 1, ... size - 1
std::vector<int> AllRanks(int size);
// The index of `rank` in the ascending list; -1 if it is not there.
int IndexOf(std::span<const int> ranks, int rank);

// Extends the hash of a sequence of calls by one more: equal sequences have equal hashes.
uint64_t Extend(uint64_t hash, const Collective& c);

// An operation failed, on every rank of the group that can still be reached. what() names the rank
// that throws, the group, the operation with its sequence number, the cause and the ranks at fault.
// The group is unusable afterwards: its calls throw the same cause.
class CollectiveError : public Error {
 public:
  enum class Cause {
    kMismatch,  // ranks called different operations
    kTimeout,   // ranks did not take part in time
    kLostRank,  // a rank's process or connection is gone
    kAborted,   // a rank gave up: Abort, or its group was destroyed by an exception
    kCorrupt,   // a message was corrupted on the way
  };

  CollectiveError(const std::string& what, Cause cause, int rank, Collective operation,
                  std::vector<int> culprits)
      : Error(what),
        cause_(cause),
        rank_(rank),
        operation_(operation),
        culprits_(std::move(culprits)) {}

  Cause cause() const { return cause_; }
  int rank() const { return rank_; }  // the one that throws
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
