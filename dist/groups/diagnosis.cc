#include "dist/groups/diagnosis.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

namespace lockstep::dist {
namespace {

// How far a rank is: the number of its call, and the message exchange within it.
using Place = std::pair<int64_t, int64_t>;

Place PlaceOf(const CallPosition& p) {
  return {p.call.sequence, p.busy ? p.step : std::numeric_limits<int64_t>::max()};
}

std::string LastCallOf(const CallPosition& p) {
  if (p.call.sequence == 0) return "has called nothing";
  if (p.busy) return "is in " + Describe(p.call);
  return "last called " + Describe(p.call);
}

std::string Seconds(std::chrono::milliseconds timeout) {
  return StrCat(static_cast<double>(timeout.count()) / 1000, " s");
}

std::vector<int> Union(const std::vector<int>& a, const std::vector<int>& b) {
  std::set<int> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  return {all.begin(), all.end()};
}

// "ranks 1 and 3 did not take part within 2 s; rank 1 last called all_reduce #6; rank 3 does not
// answer (stopped, ...)"
std::string DescribeAbsent(const Answers<CallPosition>& positions, const std::vector<int>& members,
                           const std::vector<int>& absent, std::chrono::milliseconds timeout) {
  std::vector<int> missing = Union(absent, positions.silent);
  std::erase_if(missing, [&](int r) { return IndexOf(members, r) < 0; });
  std::string reason =
      StrCat(missing.empty() ? "it did not end" : ListRanks(missing) + " did not take part",
             " within ", Seconds(timeout));
  for (size_t i = 0; i < std::min<size_t>(4, absent.size()); ++i) {
    reason += StrCat("; rank ", absent[i], " ", LastCallOf(positions.by_rank.at(absent[i])));
  }
  return reason + SilenceClause(positions.silent);
}

}  // namespace

Diagnosis ExplainTimeout(const Answers<CallPosition>& positions, const std::vector<int>& members,
                         const Collective& c, int reporter, const std::vector<int>& waited_for,
                         std::chrono::milliseconds timeout) {
  const bool is_exchange = c.kind == CollectiveKind::kExchange;
  const std::map<int, CallPosition>& at = positions.by_rank;
  std::vector<int> absent, behind, ahead;
  bool others_exchange = false;
  Place first = {std::numeric_limits<int64_t>::max(), 0};
  for (const int r : members) {
    if (!at.contains(r)) continue;
    const CallPosition& p = at.at(r);
    const bool waits = std::find(waited_for.begin(), waited_for.end(), r) != waited_for.end();
    // Exchanges have separate numbers, which do not tell how far a rank is.
    if (is_exchange || p.call.kind == CollectiveKind::kExchange) {
      if (r != reporter && waits && positions.silent.empty()) {
        absent.push_back(r);
        others_exchange |= !is_exchange && p.busy;
      }
    } else if (!p.busy && p.call.sequence < c.sequence) {
      absent.push_back(r);
    } else {
      first = std::min(first, PlaceOf(p));
    }
  }
  if (!absent.empty() || !positions.silent.empty()) {
    return {Union(absent, positions.silent), DescribeAbsent(positions, members, absent, timeout),
            others_exchange};
  }
  for (const int r : members) {
    if (!at.contains(r) || at.at(r).call.kind == CollectiveKind::kExchange) continue;
    (PlaceOf(at.at(r)) == first ? behind : ahead).push_back(r);
  }
  // Those that are furthest behind know whom they wait for; some of the others wait for them.
  const bool is_behind = is_exchange || IndexOf(behind, reporter) >= 0;
  if (is_exchange || ahead.empty()) behind = {reporter};
  std::vector<int> lost;
  if (is_behind) {
    std::set_intersection(waited_for.begin(), waited_for.end(), ahead.begin(), ahead.end(),
                          std::back_inserter(lost));
  }
  if (lost.empty()) lost = is_behind || ahead.empty() ? waited_for : ahead;
  return {
      lost,
      StrCat(
          "nothing that ", ListRanks(lost), " sent reached ", ListRanks(behind), " within ",
          Seconds(timeout),
          ", though all ranks are in the call: is the network cut? A firewall must let all ports "
          "pass between them"),
      !is_behind && !ahead.empty()};
}

Diagnosis ExplainLost(const Answers<std::vector<int>>& reports) {
  const auto& lost = reports.by_rank;
  std::map<int, std::set<int>> ends;
  for (const auto& [rank, peers] : lost) {
    for (const int peer : peers) {
      ends[rank].insert(peer);
      ends[peer].insert(rank);
    }
  }
  std::vector<int> stopped = reports.silent;
  std::erase_if(stopped, [&](int r) { return ends.contains(r); });
  if (!stopped.empty() && lost.size() == 1)
    return {stopped, "connections ended" + SilenceClause(stopped)};
  size_t most = 0;
  for (const auto& [rank, peers] : ends) most = std::max(most, peers.size());
  std::vector<int> culprits, silent;
  for (const auto& [rank, peers] : ends) {
    if (peers.size() < most) continue;
    culprits.push_back(rank);
    if (!lost.contains(rank)) silent.push_back(rank);
  }
  if (!silent.empty()) culprits = silent;
  if (culprits.size() == 2 && most == 1) {
    return {culprits, StrCat("the connection between ranks ", culprits[0], " and ", culprits[1],
                             " ended, though both are alive: is the network cut?")};
  }
  std::set<int> others;
  for (const int c : culprits) others.insert(ends[c].begin(), ends[c].end());
  for (const int c : culprits) others.erase(c);
  return {culprits, StrCat(ListRanks(culprits, "is", "are"), " gone: connections to ",
                           ListRanks(std::vector<int>(others.begin(), others.end())), " ended")};
}

}  // namespace lockstep::dist
