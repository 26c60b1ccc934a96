#include "models/blame/compared_ops.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/error.h"

namespace lockstep::models {
namespace {

using EventsByKey = std::map<std::string, OpEvent>;

bool IsCollective(const OpEvent& e) { return e.kind == "collective"; }

EventsByKey ByKey(const std::vector<OpEvent>& events) {
  EventsByKey all;
  for (const OpEvent& e : events) all[e.key] = e;
  return all;
}

// In the order in which they happened: a collective before the event that was next.
std::vector<OpEvent> Ordered(std::vector<OpEvent> events) {
  std::ranges::stable_sort(
      events, {}, [](const OpEvent& e) { return std::tuple(e.at, IsCollective(e) ? 0 : 1); });
  return events;
}

size_t FirstDifference(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

PartingCause CauseOf(const Parting& p) {
  if (p.a.kind == "random") return PartingCause::kRandom;
  if (p.given) return PartingCause::kUnseen;
  if (p.a.kind == "data") return PartingCause::kData;
  if (p.a.kind == "start") return PartingCause::kWeights;
  // Backward gave the same, and collectives, too.
  if (p.a.kind == "gradient") return PartingCause::kCollective;
  if (p.a.kind == "update") return PartingCause::kUpdate;
  return IsCollective(p.a) ? PartingCause::kCollective : PartingCause::kKernel;
}

// A rank's first event that differs.
std::optional<Parting> FirstOf(int64_t rank, const std::vector<OpEvent>& a, const EventsByKey& b) {
  for (const OpEvent& e : Ordered(a)) {
    Parting p{.rank = rank, .a = e};
    const auto other = b.find(e.key);
    if (other != b.end()) p.b = other->second;
    if (std::tie(e.kind, e.name, e.module, e.of) !=
            std::tie(p.b.kind, p.b.name, p.b.module, p.b.of) ||
        e.in.size() != p.b.in.size() || e.out.size() != p.b.out.size()) {
      p.cause = PartingCause::kOtherOps;
      return p;
    }
    if (e.in == p.b.in && e.out == p.b.out) continue;
    p.given = e.in != p.b.in;
    p.tensor = p.given ? FirstDifference(e.in, p.b.in) : FirstDifference(e.out, p.b.out);
    p.cause = CauseOf(p);
    return p;
  }
  return std::nullopt;
}

}  // namespace

std::string Describe(PartingCause cause) {
  switch (cause) {
    case PartingCause::kData:
      return "the data";
    case PartingCause::kWeights:
      return "the weights before the step";
    case PartingCause::kRandom:
      return "the random numbers";
    case PartingCause::kKernel:
      return "a kernel";
    case PartingCause::kCollective:
      return "a collective";
    case PartingCause::kUpdate:
      return "the optimizer's update";
    case PartingCause::kUnseen:
      return "something between operations";
    case PartingCause::kOtherOps:
      return "the operations themselves";
  }
  return "";
}

std::optional<Parting> FindParting(const std::vector<std::vector<OpEvent>>& a,
                                   const std::vector<std::vector<OpEvent>>& b) {
  LS_CHECK(a.size() == b.size(), "FindParting: runs of ", a.size(), " and ", b.size(), " ranks");
  std::vector<EventsByKey> a_by_key, b_by_key;
  for (const auto& events : a) a_by_key.push_back(ByKey(events));
  for (const auto& events : b) b_by_key.push_back(ByKey(events));
  // Whether a rank gave something else to the collective.
  const auto given_otherwise = [&](const std::string& key) {
    for (size_t rank = 0; rank < a.size(); ++rank) {
      const auto in_a = a_by_key[rank].find(key), in_b = b_by_key[rank].find(key);
      if (in_a == a_by_key[rank].end() || in_b == b_by_key[rank].end()) continue;
      if (in_a->second.in != in_b->second.in) return true;
    }
    return false;
  };
  std::optional<Parting> first, to_blame;
  for (size_t rank = 0; rank < a.size(); ++rank) {
    const auto p = FirstOf(static_cast<int64_t>(rank), a[rank], b_by_key[rank]);
    if (!p) continue;
    const auto earlier = [&](const std::optional<Parting>& than) {
      return !than || p->a.at < than->a.at;
    };
    if (earlier(first)) first = p;
    const bool received =
        p->cause == PartingCause::kUnseen || (IsCollective(p->a) && given_otherwise(p->a.key));
    if (!received && earlier(to_blame)) to_blame = p;
  }
  return to_blame ? to_blame : first;
}

}  // namespace lockstep::models
