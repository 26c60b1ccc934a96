// HostCollectives::CheckCall: ranks compare what they are about to call.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "dist/groups/call_check.h"
#include "dist/groups/host_collectives.h"

namespace lockstep::dist {
namespace {

constexpr uint32_t kMagic = 0x4c534351u;

// The wire format. It has no padding, so that no byte is undefined.
struct Header {
  uint32_t magic = kMagic;
  uint32_t differ = 0;  // whether this rank has heard of calls or purposes that do
  std::array<int64_t, kCollectiveValues> call;
  PairTraffic with_you;
  uint64_t purpose = 0;  // its hash
};
static_assert(std::has_unique_object_representations_v<Header>);

Collective CollectiveOf(const Header& h, int peer) {
  const auto call = CollectiveFromValues(h.call);
  if (h.magic == kMagic && call) return *call;
  throw MismatchError(
      StrCat("rank ", peer,
             " speaks another version of the protocol; run the same build on all ranks"),
      {peer});
}

// By what they do. The ranks outside of the largest party, ascending; all ranks if there is no
// single largest one.
template <class What>
std::vector<int> Culprits(const std::map<What, std::vector<int>>& parties) {
  size_t most = 0, largest = 0;
  for (const auto& [what, who] : parties) most = std::max(most, who.size());
  for (const auto& [what, who] : parties) largest += who.size() == most ? 1 : 0;
  std::set<int> culprits;
  for (const auto& [what, who] : parties) {
    if (largest > 1 || who.size() < most) culprits.insert(who.begin(), who.end());
  }
  return {culprits.begin(), culprits.end()};
}

}  // namespace

void CompareCalls(const std::map<int, Collective>& calls) {
  std::map<std::string, std::vector<int>> ranks;
  for (const auto& [rank, call] : calls) {
    const bool left = call.kind == CollectiveKind::kLeave;
    ranks[left ? "has left the group" : Describe(call)].push_back(rank);
  }
  const auto& first = calls.begin()->second;
  const bool same = std::all_of(calls.begin(), calls.end(), [&](const auto& entry) {
    return entry.second == first || (first.kind == CollectiveKind::kExchange &&
                                     entry.second.kind == CollectiveKind::kExchange);
  });
  if (same) return;
  std::string what = "ranks do not call the same operation: ";
  const char* separator = "";
  for (const auto& [call, who] : ranks) {
    what += StrCat(separator, ListRanks(who), " ", call);
    separator = "; ";
  }
  const std::string mistake = LikelyMistake(calls);
  if (!mistake.empty()) what += StrCat("; ", mistake);
  throw MismatchError(what, Culprits(ranks));
}

void ComparePurposes(const std::map<int, uint64_t>& purposes) {
  std::map<uint64_t, std::vector<int>> ranks;
  for (const auto& [rank, purpose] : purposes) ranks[purpose].push_back(rank);
  if (ranks.size() <= 1) return;
  const std::vector<int> culprits = Culprits(ranks);
  throw MismatchError(
      StrCat(ListRanks(culprits, "makes", "make"),
             " this call for another purpose than the other ranks, such as another block of the "
             "model: do all ranks take the same path through forward?"),
      culprits);
}

bool HostCollectives::CheckCall(const Collective& c, uint64_t purpose,
                                std::span<const PairTraffic> traffic, Deadline deadline) {
  step_ = 0;
  receiving_ = AwakeClock::duration();
  const bool in_one_round = size() <= kFanOut;
  bool same = true;
  for (int64_t hop = 1; hop < size(); hop *= kFanOut) {
    std::vector<int> to, from;
    for (int64_t far = hop; far < std::min<int64_t>(hop * kFanOut, size()); far += hop) {
      to.push_back(RankAt(far));
      from.push_back(RankAt(-far));
    }
    same = CompareHeaders(c, purpose, to, from,
                          in_one_round ? traffic : std::span<const PairTraffic>(), same, deadline);
  }
  if (same && !in_one_round && !traffic.empty()) {
    std::vector<int> others = AllRanks(size());
    others.erase(others.begin() + rank());
    CompareHeaders(c, purpose, others, others, traffic, same, deadline);
  }
  receiving_.reset();
  return same;
}

void HostCollectives::CheckExchange(const Collective& c, std::span<const int> peers,
                                    std::span<const PairTraffic> traffic, Deadline deadline) {
  step_ = 0;
  // For a transfer, the two ranks have words of their own.
  CompareHeaders(c, /*purpose=*/0, peers, peers, traffic, /*same=*/true, deadline);
}

bool HostCollectives::CompareHeaders(const Collective& c, uint64_t purpose, std::span<const int> to,
                                     std::span<const int> from,
                                     std::span<const PairTraffic> traffic, bool same,
                                     Deadline deadline) {
  const auto with = [&](int peer) {
    return traffic.empty() ? PairTraffic() : traffic[static_cast<size_t>(peer)];
  };
  headers_.resize((to.size() + from.size()) * sizeof(Header));
  auto* const mine = reinterpret_cast<Header*>(headers_.data());
  Header* const theirs = mine + to.size();
  for (size_t i = 0; i < to.size(); ++i) {
    mine[i] = {kMagic, same ? 0u : 1u, ToValues(c), with(to[i]), purpose};
    Send(to[i], &mine[i], sizeof(Header));
  }
  for (size_t i = 0; i < from.size(); ++i) Receive(from[i], &theirs[i], sizeof(Header));
  Run(deadline);
  std::map<int, Collective> calls = {{transport_.rank(), c}};
  std::map<int, uint64_t> purposes = {{transport_.rank(), purpose}};
  bool exchange = c.kind == CollectiveKind::kExchange;
  for (size_t i = 0; i < from.size(); ++i) {
    const Collective call = CollectiveOf(theirs[i], Member(from[i]));
    calls[Member(from[i])] = call;
    purposes[Member(from[i])] = theirs[i].purpose;
    exchange |= call.kind == CollectiveKind::kExchange;
    same &= call == c && theirs[i].purpose == purpose && theirs[i].differ == 0;
  }
  // A rank in an exchange does not take part in what others call.
  if (exchange || std::ssize(calls) == size()) {
    CompareCalls(calls);
    ComparePurposes(purposes);
    same = true;
  }
  for (size_t i = 0; i < from.size() && !traffic.empty(); ++i) {
    ComparePair(c, transport_.rank(), Member(from[i]), with(from[i]), theirs[i].with_you);
  }
  return same;
}

}  // namespace lockstep::dist
