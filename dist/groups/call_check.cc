#include "dist/groups/call_check.h"

#include <algorithm>
#include <set>

namespace lockstep::dist {
namespace {

constexpr int kFields = kCollectiveValues;
constexpr int kTraffic = 4;

Tensor TensorOf(const Collective& c) {
  const auto values = ToValues(c);
  return Tensor::FromVector<int64_t>({values.begin(), values.end()}, {kFields});
}

std::vector<int64_t> Gather(ProcessGroup& control, const Tensor& mine) {
  const Tensor all = Tensor::Zeros({mine.numel() * control.size()}, DType::kI64);
  control.AllGather(mine, all)->Synchronize();
  return all.ToVector<int64_t>();
}

}  // namespace

void CheckCollective(ProcessGroup& control, const Collective& c) {
  const auto all = Gather(control, TensorOf(c));
  std::map<int, Collective> calls;
  for (int r = 0; r < control.size(); ++r) {
    const auto call = CollectiveFromValues({all.data() + r * kFields, kFields});
    if (!call) throw MismatchError(StrCat("rank ", r, " calls something unknown"), {r});
    calls[r] = *call;
  }
  CompareCalls(calls);
}

void CheckParts(ProcessGroup& control, const Collective& c, std::span<const int64_t> input_counts,
                std::span<const int64_t> output_counts) {
  std::vector<int64_t> mine;
  for (size_t p = 0; p < input_counts.size(); ++p) {
    mine.push_back(input_counts[p]);
    mine.push_back(output_counts[p]);
  }
  const int64_t n = static_cast<int64_t>(mine.size());
  const Tensor theirs = Tensor::Zeros({n}, DType::kI64);
  control.AllToAll(Tensor::FromVector(mine, {n}), theirs)->Synchronize();
  const int64_t* const t = theirs.data<int64_t>();
  for (int p = 0; p < control.size(); ++p) {
    if (p == control.rank()) continue;
    ComparePair(c, control.rank(), p, {mine[2 * p], mine[2 * p + 1], 0, 0},
                {t[2 * p], t[2 * p + 1], 0, 0});
  }
}

void CheckTransfers(ProcessGroup& control, const Collective& c,
                    const std::vector<Transfer>& transfers) {
  const auto traffic = TrafficOf(transfers, control.size());
  std::set<int> peers;
  for (const Transfer& t : transfers) peers.insert(t.peer);
  std::map<int, Tensor> theirs;
  std::vector<Transfer> swap;
  for (const int p : peers) {
    const PairTraffic& mine = traffic[static_cast<size_t>(p)];
    theirs[p] = Tensor::Zeros({kTraffic}, DType::kI64);
    swap.push_back({Transfer::Direction::kSend,
                    Tensor::FromVector<int64_t>(
                        {mine.to_peer, mine.from_peer, static_cast<int64_t>(mine.to_peer_hash),
                         static_cast<int64_t>(mine.from_peer_hash)},
                        {kTraffic}),
                    p});
    swap.push_back({Transfer::Direction::kReceive, theirs[p], p});
  }
  control.Exchange(std::move(swap))->Synchronize();
  for (const int p : peers) {
    const int64_t* const t = theirs[p].data<int64_t>();
    ComparePair(c, control.rank(), p, traffic[static_cast<size_t>(p)],
                {t[0], t[1], static_cast<uint64_t>(t[2]), static_cast<uint64_t>(t[3])});
  }
}

void CheckHistory(ProcessGroup& control, const Collective& c, uint64_t hash, const FlightLog& log) {
  const int64_t bits = static_cast<int64_t>(hash);
  const auto hashes = Gather(control, Tensor::FromVector<int64_t>({bits}, {1}));
  if (std::all_of(hashes.begin(), hashes.end(), [&](int64_t h) { return h == bits; })) return;
  const auto values = Gather(control, Tensor::FromVector(log.ToValues(), {FlightLog::kValues}));
  std::map<int, FlightLog> logs;
  for (int r = 0; r < control.size(); ++r) {
    logs[r] = FlightLog::FromValues(values.data() + r * FlightLog::kValues, FlightLog::kValues);
  }
  CompareLogs(logs);
  throw MismatchError(
      StrCat("the ranks' calls differ, but not among the last ", FlightLog::kDepth, " before ",
             Describe(c), "; dist.check=full finds the first difference"),
      {});
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
