// HostCollectives::CheckCall: ranks compare what they are about to call.
#include <algorithm>
#include <array>
#include <cstring>
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
  uint8_t kind = 0, op = 0, dtype = 0;
  uint8_t differ = 0;  // whether this rank has heard of calls or purposes that do
  int64_t root = 0, count = 0, sequence = 0;
  int64_t to_you = 0, from_you = 0;
  uint64_t to_you_hash = 0, from_you_hash = 0;
  uint64_t purpose = 0;  // its hash
};
static_assert(sizeof(Header) == 72);

Header HeaderOf(const Collective& c, uint64_t purpose, const PairTraffic& traffic, bool same) {
  Header h;
  h.purpose = purpose;
  h.differ = same ? 0 : 1;
  h.kind = static_cast<uint8_t>(c.kind);
  h.op = static_cast<uint8_t>(c.op);
  h.dtype = static_cast<uint8_t>(c.dtype);
  h.root = c.root;
  h.count = c.count;
  h.sequence = c.sequence;
  h.to_you = traffic.to_peer;
  h.from_you = traffic.from_peer;
  h.to_you_hash = traffic.to_peer_hash;
  h.from_you_hash = traffic.from_peer_hash;
  return h;
}

PairTraffic TrafficOf(const Header& h) {
  return {h.to_you, h.from_you, h.to_you_hash, h.from_you_hash};
}

Collective CollectiveOf(const Header& h, int peer) {
  if (h.magic != kMagic || h.kind > static_cast<uint8_t>(CollectiveKind::kLeave) ||
      h.op > static_cast<uint8_t>(ReduceOp::kMin) || h.dtype >= kNumDTypes) {
    throw MismatchError(
        StrCat("rank ", peer,
               " speaks another version of the protocol; run the same build on all ranks"),
        {peer});
  }
  return {static_cast<CollectiveKind>(h.kind),
          static_cast<ReduceOp>(h.op),
          static_cast<DType>(h.dtype),
          static_cast<int>(h.root),
          h.count,
          h.sequence};
}

std::string Describe(const Collective& c, bool leaving_is_a_fact) {
  if (c.kind == CollectiveKind::kLeave && leaving_is_a_fact) return "has left the group";
  return lockstep::dist::Describe(c);
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
  for (const auto& [rank, call] : calls) ranks[Describe(call, true)].push_back(rank);
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
      StrCat(ListRanks(culprits), culprits.size() == 1 ? " makes" : " make",
             " this call for another purpose than the other ranks, such as another block of the "
             "model: do all ranks take the same path through forward?"),
      culprits);
}

bool HostCollectives::CheckCall(const Collective& c, uint64_t purpose,
                                std::span<const PairTraffic> traffic, Deadline deadline) {
  step_ = 0;
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
    mine[i] = HeaderOf(c, purpose, with(to[i]), same);
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
    ComparePair(c, transport_.rank(), Member(from[i]), with(from[i]), TrafficOf(theirs[i]));
  }
  return same;
}

}  // namespace lockstep::dist
