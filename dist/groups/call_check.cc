#include "dist/groups/call_check.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "dist/content_hash.h"

namespace lockstep::dist {
namespace {

std::string BytesOf(std::span<const int64_t> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

std::vector<int64_t> ValuesOf(const std::string& text) {
  std::vector<int64_t> values(text.size() / sizeof(int64_t));
  std::memcpy(values.data(), text.data(), values.size() * sizeof(int64_t));
  return values;
}

constexpr size_t kCallBytes = kCollectiveValues * sizeof(int64_t);
constexpr size_t kBefore = kCallBytes + sizeof(uint64_t);  // the rank's history

// Throws MismatchError with the first calls in which the logs, by rank, differ. Compares only what
// all logs cover.
void CompareLogs(const std::map<int, FlightLog>& logs) {
  int64_t common = std::numeric_limits<int64_t>::max();
  for (const auto& [rank, log] : logs) common = std::min(common, log.last());
  for (int64_t s = std::max<int64_t>(1, common - FlightLog::kDepth + 1); s <= common; ++s) {
    std::map<int, Collective> calls;
    for (const auto& [rank, log] : logs) {
      if (const auto call = log.At(s)) calls[rank] = *call;
    }
    if (!calls.empty()) CompareCalls(calls);
  }
}

void CompareCalls(const std::vector<Party>& parties) {
  std::map<int, Collective> calls;
  for (const Party& party : parties) {
    // A hash follows, and perhaps the rank's history.
    const auto call = CollectiveFromValues(ValuesOf(party.text.substr(0, kCallBytes)));
    if (!call) throw MismatchError("an unknown call of " + ListRanks(party.ranks), party.ranks);
    for (const int rank : party.ranks) calls[rank] = *call;
  }
  CompareCalls(calls);
}

}  // namespace

std::string TextOf(const Collective& c, const std::string& purpose) {
  return TextOf(c, HashBytes(std::as_bytes(std::span(purpose))), FlightLog());
}

void CompareCallsAndPurposes(const std::vector<Party>& parties) {
  CompareCalls(parties);
  std::map<int, uint64_t> purposes;
  for (const Party& party : parties) {
    const auto values = ValuesOf(party.text.substr(0, kBefore));
    for (const int rank : party.ranks) purposes[rank] = static_cast<uint64_t>(values.back());
  }
  ComparePurposes(purposes);
}

std::string TextOf(const Collective& c, uint64_t hash, const FlightLog& log) {
  const int64_t bits[] = {static_cast<int64_t>(hash)};
  return BytesOf(ToValues(c)) + BytesOf(bits) + log.ToBytes();
}

void CompareHistories(const std::vector<Party>& parties, const Collective& c) {
  if (parties.size() == 1) return;
  std::map<int, FlightLog> logs;
  for (const Party& party : parties) {
    if (party.text.size() <= kBefore) CompareCalls(parties);  // a rank that checks a single call
    const auto log = FlightLog::FromBytes(party.text.substr(std::min(kBefore, party.text.size())));
    for (const int rank : party.ranks) logs[rank] = log;
  }
  CompareLogs(logs);
  CompareCalls(parties);
  throw MismatchError(StrCat("the ranks' calls differ before ", Describe(c),
                             ": in their purpose, such as another block of the model (do all ranks "
                             "take the same path through forward?), or before the last ",
                             FlightLog::kDepth, ", of which dist.check=full finds the first"),
                      {});
}

std::string TextOf(const PairTraffic& t) { return {reinterpret_cast<const char*>(&t), sizeof(t)}; }

void ComparePair(const std::vector<Party>& parties, const Collective& c, int rank, int peer,
                 const PairTraffic& mine) {
  for (const Party& party : parties) {
    PairTraffic theirs;
    if (IndexOf(party.ranks, peer) < 0 || party.text.size() < sizeof(theirs)) continue;
    std::memcpy(&theirs, party.text.data(), sizeof(theirs));
    ComparePair(c, rank, peer, mine, theirs);
  }
}

std::vector<PairTraffic> TrafficOf(std::span<const int64_t> input_counts,
                                   std::span<const int64_t> output_counts) {
  std::vector<PairTraffic> traffic;
  for (size_t p = 0; p < input_counts.size(); ++p) {
    traffic.push_back({input_counts[p], output_counts[p], 0, 0});
  }
  return traffic;
}

std::vector<PairTraffic> TrafficOf(const std::vector<Transfer>& transfers, int size) {
  std::vector<PairTraffic> traffic(static_cast<size_t>(size));
  for (const Transfer& t : transfers) {
    PairTraffic& pair = traffic[static_cast<size_t>(t.peer)];
    const Collective tensor{CollectiveKind::kExchange, ReduceOp::kSum, t.tensor.dtype(), 0,
                            t.tensor.numel()};
    if (t.direction == Transfer::Direction::kSend) {
      pair.to_peer += t.tensor.numel();
      pair.to_peer_hash = Extend(pair.to_peer_hash, tensor);
    } else {
      pair.from_peer += t.tensor.numel();
      pair.from_peer_hash = Extend(pair.from_peer_hash, tensor);
    }
  }
  return traffic;
}

void ComparePair(const Collective& c, int rank, int peer, const PairTraffic& mine,
                 const PairTraffic& theirs) {
  const auto compare = [&](int from, int to, int64_t sent, int64_t taken, bool same) {
    if (same && sent == taken) return;
    const std::string what =
        sent == taken ? " elements, which expects as many but of other dtypes or in other tensors"
                      : StrCat(" elements, which expects ", taken);
    throw MismatchError(StrCat(Name(c.kind), ": rank ", from, " sends rank ", to, " ", sent, what),
                        {std::min(rank, peer), std::max(rank, peer)});
  };
  compare(rank, peer, mine.to_peer, theirs.from_peer, mine.to_peer_hash == theirs.from_peer_hash);
  compare(peer, rank, theirs.to_peer, mine.from_peer, theirs.to_peer_hash == mine.from_peer_hash);
}

}  // namespace lockstep::dist
