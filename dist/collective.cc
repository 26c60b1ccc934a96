#include "dist/collective.h"

namespace lockstep::dist {

std::string_view Name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kExchange:
      return "exchange";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kLeave:
      return "leave";
  }
  return "unknown operation";
}

std::string_view Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  return "unknown reduction";
}

std::string Describe(const Collective& c) {
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

uint64_t Extend(uint64_t hash, const Collective& c) {
  // FNV-1a over 64-bit words, with the finaliser of splitmix64 after each: words of small numbers
  // differ in few bits.
  for (const uint64_t word : {static_cast<uint64_t>(c.kind), static_cast<uint64_t>(c.op),
                              static_cast<uint64_t>(c.dtype), static_cast<uint64_t>(c.root),
                              static_cast<uint64_t>(c.count), static_cast<uint64_t>(c.sequence)}) {
    hash = (hash ^ word) * 0x100000001b3u;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    hash ^= hash >> 31;
  }
  return hash;
}

}  // namespace lockstep::dist
