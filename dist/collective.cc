#include "dist/collective.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace lockstep::dist {

namespace {

// By CollectiveKind and ReduceOp.
constexpr std::array<std::string_view, 8> kKinds = {"all_reduce", "reduce_scatter", "all_gather",
                                                    "broadcast",  "all_to_all",     "exchange",
                                                    "barrier",    "leave"};
constexpr std::array<std::string_view, 3> kOps = {"sum", "max", "min"};
static_assert(static_cast<size_t>(CollectiveKind::kLeave) + 1 == kKinds.size() &&
              kKinds.back() == "leave");
static_assert(static_cast<size_t>(ReduceOp::kMin) + 1 == kOps.size() && kOps.back() == "min");

}  // namespace

std::string_view Name(CollectiveKind kind) { return kKinds[static_cast<size_t>(kind)]; }
std::string_view Name(ReduceOp op) { return kOps[static_cast<size_t>(op)]; }

std::string Describe(const Collective& c) {
  if (c.sequence == 0) return "start";
  const std::string what = StrCat(Name(c.kind), " #", c.sequence);
  const std::string elements =
      c.count < 0 ? StrCat(c.dtype, "[uneven]") : StrCat(c.dtype, "[", c.count, "]");
  switch (c.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
      return StrCat(what, " (", elements, ", ", Name(c.op), ")");
    case CollectiveKind::kBroadcast:
      return StrCat(what, " (", elements, ", from rank ", c.root, ")");
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      return StrCat(what, " (", elements, ")");
    case CollectiveKind::kExchange:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kLeave:
      break;
  }
  return what;
}

std::string Describe(const Collective& c, const std::string& purpose) {
  return Describe(c) + (purpose.empty() ? "" : " of " + purpose);
}

std::array<int64_t, kCollectiveValues> ToValues(const Collective& c) {
  return {static_cast<int64_t>(c.kind),
          static_cast<int64_t>(c.op),
          static_cast<int64_t>(c.dtype),
          static_cast<int64_t>(c.root),
          c.count,
          c.sequence};
}

std::optional<Collective> CollectiveFromValues(std::span<const int64_t> v) {
  const bool known = v.size() == kCollectiveValues && v[0] >= 0 &&
                     v[0] <= static_cast<int64_t>(CollectiveKind::kLeave) && v[1] >= 0 &&
                     v[1] <= static_cast<int64_t>(ReduceOp::kMin) && v[2] >= 0 && v[2] < kNumDTypes;
  if (!known) return std::nullopt;
  return Collective{static_cast<CollectiveKind>(v[0]),
                    static_cast<ReduceOp>(v[1]),
                    static_cast<DType>(v[2]),
                    static_cast<int>(v[3]),
                    v[4],
                    v[5]};
}

std::string ListRanks(std::span<const int> ranks) {
  constexpr size_t kShown = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(kShown, ranks.size()); ++i) {
    text += StrCat(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  }
  if (ranks.size() > kShown) text += StrCat(" and ", ranks.size() - kShown, " more");
  return text;
}

std::string ListRanks(std::span<const int> ranks, const char* one_does, const char* they_do) {
  return StrCat(ListRanks(ranks), " ", ranks.size() == 1 ? one_does : they_do);
}

std::string LikelyMistake(const std::map<int, Collective>& calls) {
  std::vector<int> left;
  std::map<CollectiveKind, std::vector<int>> kinds;
  std::set<int64_t> counts;
  std::set<DType> dtypes;
  std::set<int> roots;
  for (const auto& [rank, c] : calls) {
    if (c.kind == CollectiveKind::kLeave) left.push_back(rank);
    kinds[c.kind].push_back(rank);
    counts.insert(c.count);
    dtypes.insert(c.dtype);
    roots.insert(c.root);
  }
  if (!left.empty() && left.size() < calls.size()) {
    return StrCat(ListRanks(left),
                  " ended while others continue: with less data? Give all ranks the ",
                  "same number of steps (CheckEqual before the loop), or call Reducer::Join on "
                  "those that end early");
  }
  if (kinds.size() > 1) {
    // Name the rank that deviates, if only one does.
    for (const auto& [kind, ranks] : kinds) {
      if (ranks.size() > 1 || calls.size() < 3) continue;
      return StrCat("is there a collective that only rank ", ranks[0], " calls or skips, as ",
                    "inside `if (rank == ", ranks[0], ")`? All ranks must make every call");
    }
    return "is one of them inside an `if` on the rank, such as `if (rank == 0)`? All ranks must "
           "make every call";
  }
  if (dtypes.size() > 1) return "do all ranks run with the same precision, and the same build?";
  if (counts.size() > 1) {
    return "do all ranks have the same configuration, the same model, batches of the same size and "
           "the same build?";
  }
  if (roots.size() > 1) return "all ranks must name the same root";
  return "";
}

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int IndexOf(std::span<const int> ranks, int rank) {
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return at != ranks.end() && *at == rank ? static_cast<int>(at - ranks.begin()) : -1;
}

uint64_t Extend(uint64_t hash, const Collective& c) {
  // FNV-1a over 64-bit words, each followed by the finaliser of splitmix64, since small numbers
  // differ in few bits.
  for (const int64_t value : ToValues(c)) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3u;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    hash ^= hash >> 31;
  }
  return hash;
}

}  // namespace lockstep::dist
