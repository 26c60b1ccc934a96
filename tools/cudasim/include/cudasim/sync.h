// Barriers and warp collectives.
//
// A collective is complete when all lanes in its mask have arrived. As on Volta and later, it does
// not wait for lanes that have exited; but see CUDASIM_EXITED in the README.
#ifndef CUDASIM_SYNC_H_
#define CUDASIM_SYNC_H_

#include <cstring>
#include <type_traits>

#include "cudasim/thread.h"

namespace cudasim {

enum class Vote { kNone, kCount, kAnd, kOr };

// Waits for all threads of the block; returns the vote over their predicates.
int SyncBlock(Vote vote, bool predicate, Where where);

// The arguments of what the last lane to arrive does for all: lanes[i] is lane i's payload, null if
// it does not participate. `present` has a bit for each lane that does.
struct LaneCalls {
  void* payload[32];
  unsigned present;
  Where where;
};
using CompleteFunction = void (*)(const LaneCalls& calls);

// Waits until all lanes of `mask` have arrived, with the same `complete`; one of them calls it.
void Collective(const char* name, unsigned mask, CompleteFunction complete, void* payload,
                Where where);

// Reports that `lane` reads the value of `source`, which does not participate.
void ReportMissingSource(const LaneCalls& calls, int lane, int source);

// The lanes of the calling thread's warp that are running and not waiting in a collective.
unsigned ActiveLanes();

// For the race checker: orders these lanes' accesses so far before their next ones.
void OrderLanes(unsigned present);

// The values that the warp's collectives carry: 4 or 8 bytes.
template <typename T>
inline constexpr bool kIsLaneValue = std::is_trivially_copyable_v<T> &&
                                     (sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);

template <typename T>
struct ShuffleCall {
  T value;
  T result;
  int source;
};

template <typename T>
void CompleteShuffle(const LaneCalls& calls) {
  for (unsigned rest = calls.present; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    auto* call = static_cast<ShuffleCall<T>*>(calls.payload[lane]);
    if ((calls.present >> call->source & 1u) == 0) {
      ReportMissingSource(calls, lane, call->source);
      continue;
    }
    call->result = static_cast<const ShuffleCall<T>*>(calls.payload[call->source])->value;
  }
}

template <typename T>
T Shuffle(const char* name, unsigned mask, T value, int source, Where where) {
  static_assert(kIsLaneValue<T>, "shuffles carry 2, 4 or 8 bytes");
  ShuffleCall<T> call{value, value, source};
  Collective(name, mask, &CompleteShuffle<T>, &call, where);
  return call.result;
}

struct VoteCall {
  bool predicate;
  unsigned ballot;
};
void CompleteVote(const LaneCalls& calls);

inline unsigned Ballot(const char* name, unsigned mask, bool predicate, Where where) {
  VoteCall call{predicate, 0};
  Collective(name, mask, &CompleteVote, &call, where);
  return call.ballot;
}

template <typename T, typename Op>
void CompleteReduce(const LaneCalls& calls) {
  unsigned rest = calls.present;
  T result = *static_cast<T*>(calls.payload[__builtin_ctz(rest)]);
  while ((rest &= rest - 1) != 0) {
    result = Op()(result, *static_cast<T*>(calls.payload[__builtin_ctz(rest)]));
  }
  for (rest = calls.present; rest != 0; rest &= rest - 1) {
    *static_cast<T*>(calls.payload[__builtin_ctz(rest)]) = result;
  }
}

template <typename Op, typename T>
T Reduce(const char* name, unsigned mask, T value, Where where) {
  Collective(name, mask, &CompleteReduce<T, Op>, &value, where);
  return value;
}

template <typename T>
struct MatchCall {
  T value;
  unsigned same;
};

template <typename T>
void CompleteMatch(const LaneCalls& calls) {
  for (unsigned rest = calls.present; rest != 0; rest &= rest - 1) {
    auto* mine = static_cast<MatchCall<T>*>(calls.payload[__builtin_ctz(rest)]);
    mine->same = 0;
    for (unsigned others = calls.present; others != 0; others &= others - 1) {
      const int lane = __builtin_ctz(others);
      const auto* other = static_cast<const MatchCall<T>*>(calls.payload[lane]);
      if (std::memcmp(&mine->value, &other->value, sizeof(T)) == 0) mine->same |= 1u << lane;
    }
  }
}

void CompleteSyncWarp(const LaneCalls& calls);

}  // namespace cudasim

#define CUDASIM_WHERE cudasim::Where where = cudasim::Where::current()

inline void __syncthreads(CUDASIM_WHERE) { cudasim::SyncBlock(cudasim::Vote::kNone, false, where); }
inline int __syncthreads_count(int predicate, CUDASIM_WHERE) {
  return cudasim::SyncBlock(cudasim::Vote::kCount, predicate != 0, where);
}
inline int __syncthreads_and(int predicate, CUDASIM_WHERE) {
  return cudasim::SyncBlock(cudasim::Vote::kAnd, predicate != 0, where);
}
inline int __syncthreads_or(int predicate, CUDASIM_WHERE) {
  return cudasim::SyncBlock(cudasim::Vote::kOr, predicate != 0, where);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, CUDASIM_WHERE) {
  cudasim::Collective("__syncwarp", mask, &cudasim::CompleteSyncWarp, nullptr, where);
}
inline unsigned __activemask() { return cudasim::ActiveLanes(); }

// `width` is a power of two: the warp is divided into groups of this many lanes.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDASIM_WHERE) {
  const int lane = static_cast<int>(cudasim::LaneNumber());
  return cudasim::Shuffle("__shfl_sync", mask, value,
                          (lane & ~(width - 1)) | (source & (width - 1)), where);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDASIM_WHERE) {
  const int lane = static_cast<int>(cudasim::LaneNumber());
  const int source = lane - static_cast<int>(delta);
  return cudasim::Shuffle("__shfl_up_sync", mask, value,
                          source < (lane & ~(width - 1)) ? lane : source, where);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDASIM_WHERE) {
  const int lane = static_cast<int>(cudasim::LaneNumber());
  const int source = lane + static_cast<int>(delta);
  return cudasim::Shuffle("__shfl_down_sync", mask, value,
                          source > (lane | (width - 1)) ? lane : source, where);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, CUDASIM_WHERE) {
  const int lane = static_cast<int>(cudasim::LaneNumber());
  const int source = lane ^ lane_mask;
  return cudasim::Shuffle("__shfl_xor_sync", mask, value,
                          source > (lane | (width - 1)) ? lane : source, where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, CUDASIM_WHERE) {
  return cudasim::Ballot("__ballot_sync", mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate, CUDASIM_WHERE) {
  return cudasim::Ballot("__any_sync", mask, predicate != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, CUDASIM_WHERE) {
  return cudasim::Ballot("__all_sync", mask, predicate == 0, where) == 0;
}

template <typename T>
unsigned __match_any_sync(unsigned mask, T value, CUDASIM_WHERE) {
  cudasim::MatchCall<T> call{value, 0};
  cudasim::Collective("__match_any_sync", mask, &cudasim::CompleteMatch<T>, &call, where);
  return call.same;
}

namespace cudasim {
struct AddOp {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
  }
};
struct MinOp {
  template <typename T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct MaxOp {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct AndOp {
  unsigned operator()(unsigned a, unsigned b) const { return a & b; }
};
struct OrOp {
  unsigned operator()(unsigned a, unsigned b) const { return a | b; }
};
struct XorOp {
  unsigned operator()(unsigned a, unsigned b) const { return a ^ b; }
};
}  // namespace cudasim

// int or unsigned.
template <typename T>
T __reduce_add_sync(unsigned mask, T value, CUDASIM_WHERE) {
  return cudasim::Reduce<cudasim::AddOp>("__reduce_add_sync", mask, value, where);
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value, CUDASIM_WHERE) {
  return cudasim::Reduce<cudasim::MinOp>("__reduce_min_sync", mask, value, where);
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value, CUDASIM_WHERE) {
  return cudasim::Reduce<cudasim::MaxOp>("__reduce_max_sync", mask, value, where);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, CUDASIM_WHERE) {
  return cudasim::Reduce<cudasim::AndOp>("__reduce_and_sync", mask, value, where);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, CUDASIM_WHERE) {
  return cudasim::Reduce<cudasim::OrOp>("__reduce_or_sync", mask, value, where);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value, CUDASIM_WHERE) {
  return cudasim::Reduce<cudasim::XorOp>("__reduce_xor_sync", mask, value, where);
}

#endif  // CUDASIM_SYNC_H_
