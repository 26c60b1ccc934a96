#include "tools/cudasim/ptx/collectives.h"

#include <immintrin.h>

#include <algorithm>
#include <limits>

#include "tools/cudasim/ptx/addresses.h"
#include "tools/cudasim/ptx/detectors/counters.h"

namespace cudasim {
namespace ptx {
namespace {

// Whether the instruction runs for those lanes only of which its guard is true, which cannot wait.
bool IsGuarded(const Warp& warp) { return warp.patience == std::numeric_limits<int64_t>::max(); }

bool IsUniform(const uint32_t* values, uint32_t value) {
  uint32_t difference = 0;
  for (int k = 0; k < kLanes; ++k) difference |= values[k] ^ value;
  return difference == 0;
}

// Lanes may come with several masks, as those of tiles or of coalesced groups do. Those whose mask
// is complete, all of its live lanes here and with the same mask, go on, and any others wait for
// who is absent. Returns what runs before this instruction, if no mask is complete.
const Instruction* Gather(Warp& warp, const Instruction* i, Slot slot) {
  const uint32_t* const masks = warp.Lanes<uint32_t>(slot);
  if (warp.mask == kAllLanes && IsUniform(masks, kAllLanes)) [[likely]]
    return nullptr;
  uint32_t incomplete = 0, absent = 0;
  for (uint32_t rest = warp.mask; rest != 0;) {
    const int first = __builtin_ctz(rest);
    const uint32_t mask = masks[first];
    uint32_t same = 0;
    for (int k : LanesOf(rest)) same |= static_cast<uint32_t>(masks[k] == mask) << k;
    rest &= ~same;
    if ((same & ~mask) != 0) {
      warp.Fail(Bug::kMissingLanes, i, __builtin_ctz(same & ~mask),
                "the lane is not in its own mask");
    }
    const uint32_t exited = mask & warp.existing & ~warp.live;
    if (exited != 0 && warp.block->settings().report_exited) {
      FailMissingLane(warp, i, first, __builtin_ctz(exited));
    }
    const uint32_t missing = mask & warp.live & ~same;
    if (missing == 0) continue;
    incomplete |= same;
    absent |= missing;
  }
  if (incomplete == 0) return nullptr;
  if (incomplete == warp.mask || IsGuarded(warp)) {
    const Instruction* const others = LetOthersCatchUp(warp, i, absent);
    if (others != nullptr) return others;
    const int lane = __builtin_ctz(incomplete);
    FailMissingLane(warp, i, lane, __builtin_ctz(absent & masks[lane]));
  }
  warp.SetMask(warp.mask & ~incomplete);
  warp.stuck |= incomplete;
  warp.wanted |= absent;
  warp.AddWaiting({warp.NumberOf(i), incomplete});
  return nullptr;
}

// f(members) for the live lanes of each mask, which Gather has found complete.
template <typename F>
void EachMask(const Warp& warp, Slot slot, F f) {
  const uint32_t* const masks = warp.Lanes<uint32_t>(slot);
  uint32_t members;
  for (uint32_t rest = warp.mask; rest != 0; rest &= ~members) {
    members = masks[__builtin_ctz(rest)] & warp.mask;
    f(members);
  }
}

enum class Shuffle { kUp, kDown, kButterfly, kIndex };

// The lane from which lane k reads, and whether that is one of its segment.
template <Shuffle kMode>
inline int SourceLane(int k, uint32_t b, uint32_t c, bool* valid) {
  const auto lane = static_cast<uint32_t>(k);
  const uint32_t clamp = c & 31, segment = c >> 8 & 31;
  const uint32_t highest = (lane & segment) | (clamp & ~segment);
  uint32_t source;
  if constexpr (kMode == Shuffle::kUp) {
    source = lane - (b & 31);
    *valid = static_cast<int32_t>(source) >= static_cast<int32_t>(highest);
  } else {
    source = kMode == Shuffle::kDown        ? lane + (b & 31)
             : kMode == Shuffle::kButterfly ? lane ^ (b & 31)
                                            : (lane & segment) | (b & 31 & ~segment);
    *valid = source <= highest;
  }
  return *valid ? static_cast<int>(source) : k;
}

template <Shuffle kMode>
const Instruction* ShuffleLanes(Warp& warp, const Instruction* i) {
  const Slot* const slots = warp.program->slots.data() + i->extra;
  if (const Instruction* const others = Gather(warp, i, slots[0])) return others;
  const uint32_t* const a = warp.Lanes<uint32_t>(i->a);
  const uint32_t* const b = warp.Lanes<uint32_t>(i->b);
  const uint32_t* const c = warp.Lanes<uint32_t>(i->c);
  const uint32_t* const masks = warp.Lanes<uint32_t>(slots[0]);
  if (!IsUniform(masks, kAllLanes)) [[unlikely]] {
    for (int k : LanesOf(warp.mask)) {
      bool valid;
      const int source = SourceLane<kMode>(k, b[k], c[k], &valid);
      if (valid && (masks[k] >> source & 1) == 0) {
        warp.Fail(
            Bug::kMissingLanes, i, k,
            "the lane reads from lane " + std::to_string(source) + ", which is not in the mask");
      }
    }
  }
  alignas(32) uint32_t values[kLanes];
  // The same distance for all, among all lanes.
  if (kMode == Shuffle::kButterfly && IsUniform(b, b[0]) && IsUniform(c, 31)) {
    const __m256i within = _mm256_xor_si256(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                            _mm256_set1_epi32(static_cast<int>(b[0] & 7)));
    for (uint32_t v = 0; v < 4; ++v) {
      const __m256i from =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a) + (v ^ (b[0] >> 3 & 3)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(values) + v,
                         _mm256_permutevar8x32_epi32(from, within));
    }
    SetLanes<uint32_t>(warp, i->d, [&](int k) { return values[k]; });
    if (i->count == 2) SetPredicate(warp, slots[1], kAllLanes);
    return i + 1;
  }
  uint32_t valid_lanes = 0;
  for (int k = 0; k < kLanes; ++k) {
    bool valid;
    values[k] = a[SourceLane<kMode>(k, b[k], c[k], &valid)];
    valid_lanes |= static_cast<uint32_t>(valid) << k;
  }
  SetLanes<uint32_t>(warp, i->d, [&](int k) { return values[k]; });
  if (i->count == 2) SetPredicate(warp, slots[1], valid_lanes);
  return i + 1;
}

enum class Vote { kAll, kAny, kUniform, kBallot };

template <Vote kMode>
const Instruction* VoteLanes(Warp& warp, const Instruction* i) {
  if (const Instruction* const others = Gather(warp, i, i->c)) return others;
  const uint32_t votes = warp.Predicate(i->a) ^ (i->option == 1 ? kAllLanes : 0);
  uint32_t ballots[kLanes] = {}, winners = 0;
  EachMask(warp, i->c, [&](uint32_t members) {
    const uint32_t for_it = votes & members;
    if constexpr (kMode == Vote::kBallot) {
      for (int k : LanesOf(members)) ballots[k] = for_it;
    } else if (kMode == Vote::kAll   ? for_it == members
               : kMode == Vote::kAny ? for_it != 0
                                     : for_it == 0 || for_it == members) {
      winners |= members;
    }
  });
  if constexpr (kMode == Vote::kBallot) {
    SetLanes<uint32_t>(warp, i->d, [&](int k) { return ballots[k]; });
  } else {
    SetPredicate(warp, i->d, winners);
  }
  return i + 1;
}

template <typename T, bool kWithAll>
const Instruction* MatchLanes(Warp& warp, const Instruction* i) {
  if (const Instruction* const others = Gather(warp, i, i->c)) return others;
  const T* const a = warp.Lanes<T>(i->a);
  uint32_t same[kLanes] = {}, alike = 0;
  EachMask(warp, i->c, [&](uint32_t members) {
    for (int k : LanesOf(members)) {
      for (int other : LanesOf(members)) {
        same[k] |= static_cast<uint32_t>(a[other] == a[k]) << other;
      }
    }
    if (same[__builtin_ctz(members)] == members) alike |= members;
  });
  SetLanes<uint32_t>(warp, i->d,
                     [&](int k) { return kWithAll && (alike >> k & 1) == 0 ? 0 : same[k]; });
  if (kWithAll && i->count == 1) SetPredicate(warp, warp.program->slots[i->extra], alike);
  return i + 1;
}

template <typename T, typename F>
const Instruction* ReduceLanes(Warp& warp, const Instruction* i) {
  if (const Instruction* const others = Gather(warp, i, i->c)) return others;
  const T* const a = warp.Lanes<T>(i->a);
  T results[kLanes] = {};
  EachMask(warp, i->c, [&](uint32_t members) {
    T result = a[__builtin_ctz(members)];
    for (int k : LanesOf(members & (members - 1))) result = F{}(result, a[k]);
    for (int k : LanesOf(members)) results[k] = result;
  });
  SetLanes<T>(warp, i->d, [&](int k) { return results[k]; });
  return i + 1;
}

template <typename T, typename F>
Handler MakeReduce(F) {
  return &ReduceLanes<T, F>;
}

template <typename T>
Handler ReduceOf(std::string_view operation) {
  if (operation == "add") {
    return MakeReduce<T>([](T x, T y) { return static_cast<T>(uint32_t(x) + uint32_t(y)); });
  }
  if (operation == "min") return MakeReduce<T>([](T x, T y) { return std::min(x, y); });
  if (operation == "max") return MakeReduce<T>([](T x, T y) { return std::max(x, y); });
  if (operation == "and") return MakeReduce<T>([](T x, T y) { return x & y; });
  if (operation == "or") return MakeReduce<T>([](T x, T y) { return x | y; });
  if (operation == "xor") return MakeReduce<T>([](T x, T y) { return x ^ y; });
  return nullptr;
}

}  // namespace

void FailMissingLane(const Warp& warp, const Instruction* i, int lane, int missing) {
  warp.Fail(Bug::kMissingLanes, i, lane,
            "lane " + std::to_string(missing) + " is in the mask, but " +
                ((warp.live >> missing & 1) == 0 ? "has exited" : "does not take part"));
}

const Instruction* LetOthersCatchUp(Warp& warp, const Instruction* i, uint32_t wanted) {
  const uint32_t at = warp.NumberOf(i);
  bool here = false, elsewhere = false;
  for (const Group& group : warp.waiting) {
    here = here || group.at == at;
    elsewhere = elsewhere || !warp.IsStuck(group);
  }
  if (IsGuarded(warp) || !(here || elsewhere)) return nullptr;
  if (!here) {
    warp.stuck |= warp.mask;
    warp.wanted |= wanted;
  }
  if (Tally* const tally = warp.block->tally(); tally != nullptr) tally->Retract(warp, i);
  warp.AddWaiting({at, warp.mask});
  return warp.NextGroup();
}

Handler ShuffleHandler(std::string_view mode) {
  if (mode == "up") return &ShuffleLanes<Shuffle::kUp>;
  if (mode == "down") return &ShuffleLanes<Shuffle::kDown>;
  if (mode == "bfly") return &ShuffleLanes<Shuffle::kButterfly>;
  if (mode == "idx") return &ShuffleLanes<Shuffle::kIndex>;
  return nullptr;
}

Handler VoteHandler(std::string_view mode) {
  if (mode == "all") return &VoteLanes<Vote::kAll>;
  if (mode == "any") return &VoteLanes<Vote::kAny>;
  if (mode == "uni") return &VoteLanes<Vote::kUniform>;
  if (mode == "ballot") return &VoteLanes<Vote::kBallot>;
  return nullptr;
}

Handler MatchHandler(std::string_view mode, Type type) {
  const bool all = mode == "all";
  if (BytesOf(type) == 4) return all ? &MatchLanes<uint32_t, true> : &MatchLanes<uint32_t, false>;
  return all ? &MatchLanes<uint64_t, true> : &MatchLanes<uint64_t, false>;
}

Handler ReduceHandler(std::string_view operation, Type type) {
  return type == Type::kS32 ? ReduceOf<int32_t>(operation) : ReduceOf<uint32_t>(operation);
}

const Instruction* ActiveMask(Warp& warp, const Instruction* i) {
  SetLanes<uint32_t>(warp, i->d, [&](int) { return warp.mask; });
  return i + 1;
}

const Instruction* Elect(Warp& warp, const Instruction* i) {
  if (const Instruction* const others = Gather(warp, i, i->c)) return others;
  uint32_t leaders[kLanes] = {}, elected = 0;
  EachMask(warp, i->c, [&](uint32_t members) {
    const int leader = __builtin_ctz(members);
    for (int k : LanesOf(members)) leaders[k] = static_cast<uint32_t>(leader);
    elected |= uint32_t{1} << leader;
  });
  SetLanes<uint32_t>(warp, i->d, [&](int k) { return leaders[k]; });
  SetPredicate(warp, warp.program->slots[i->extra], elected);
  return i + 1;
}

const Instruction* SynchronizeWarp(Warp& warp, const Instruction* i) {
  if (const Instruction* const others = Gather(warp, i, i->c)) return others;
  if (warp.block->races() != nullptr) {
    EachMask(warp, i->c,
             [&](uint32_t members) { warp.block->races()->clocks().MeetLanes(warp, members); });
  }
  return warp.AfterAccess(i);
}

}  // namespace ptx
}  // namespace cudasim
