#include "dist/groups/host_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "dist/content_hash.h"
#include "dist/groups/host_reduce.h"

namespace lockstep::dist {
namespace {

// Up to this size a second round trip costs more than sending everything to all ranks.
constexpr int64_t kAtOnce = 16 * 1024;  // bytes
// Scratch memory per rank.
constexpr int64_t kChunk = 4 * 1024 * 1024;  // bytes

struct Range {
  int64_t begin, count;
};

// Part `index` of n elements cut into `parts`, whose sizes differ by at most one.
Range PartOf(int64_t n, int parts, int index) {
  const int64_t base = n / parts, rest = n % parts;
  return {base * index + std::min<int64_t>(index, rest), base + (index < rest ? 1 : 0)};
}

}  // namespace

HostCollectives::HostCollectives(Transport& transport, bool hashes)
    : transport_(transport),
      rank_(IndexOf(transport.members(), transport.rank())),
      hashes_(hashes) {}

void HostCollectives::Send(int peer, const void* data, int64_t bytes) {
  if (bytes > 0) outgoing_.push_back({Member(peer), data, bytes});
}

void HostCollectives::Receive(int peer, void* data, int64_t bytes) {
  if (bytes > 0) incoming_.push_back({Member(peer), data, bytes});
}

void HostCollectives::Run(Deadline deadline) {
  const auto outgoing = std::exchange(outgoing_, {});
  const auto incoming = std::exchange(incoming_, {});
  ++step_;
  if (!outgoing.empty() || !incoming.empty()) {
    const auto began = AwakeClock::now();
    const auto arrived = transport_.Run(outgoing, incoming, deadline);
    if (!receiving_) receiving_ = arrived - began;
  }
  if (hashes_) CompareHashes(outgoing, incoming, deadline);
}

void HostCollectives::CompareHashes(std::span<const Transport::Outgoing> outgoing,
                                    std::span<const Transport::Incoming> incoming,
                                    Deadline deadline) {
  const auto hash = [](const void* data, int64_t bytes) {
    return HashBytes({static_cast<const std::byte*>(data), static_cast<size_t>(bytes)});
  };
  std::vector<Transport::Outgoing> mine;
  std::vector<Transport::Incoming> theirs;
  my_hashes_.resize(outgoing.size());
  their_hashes_.resize(incoming.size());
  for (size_t i = 0; i < outgoing.size(); ++i) {
    my_hashes_[i] = hash(outgoing[i].data, outgoing[i].bytes);
    mine.push_back({outgoing[i].peer, &my_hashes_[i], sizeof(uint64_t)});
  }
  for (size_t i = 0; i < incoming.size(); ++i) {
    theirs.push_back({incoming[i].peer, &their_hashes_[i], sizeof(uint64_t)});
  }
  if (!mine.empty() || !theirs.empty()) transport_.Run(mine, theirs, deadline);
  for (size_t i = 0; i < incoming.size(); ++i) {
    const auto& [peer, data, bytes] = incoming[i];
    if (hash(data, bytes) == their_hashes_[i]) continue;
    throw TransportError(TransportError::Cause::kCorrupt, {peer},
                         StrCat("a message of ", bytes, " bytes from rank ", peer, " to rank ",
                                transport_.rank(), " was corrupted on the way"));
  }
}

std::byte* HostCollectives::Scratch(int64_t bytes) {
  const auto needed = static_cast<size_t>(bytes * size());
  if (scratch_.size() < needed) scratch_.resize(needed);
  return scratch_.data();
}

void HostCollectives::AllReduce(ReduceOp op, DType dtype, void* data, int64_t n,
                                Deadline deadline) {
  if (size() == 1) return;
  auto* const bytes = static_cast<std::byte*>(data);
  const int64_t element = SizeOf(dtype);
  if (n * element <= kAtOnce) return AllReduceAtOnce(op, dtype, bytes, n, deadline);
  const int64_t step = kChunk / element * size();
  for (int64_t begin = 0; begin < n; begin += step) {
    AllReduceInParts(op, dtype, bytes + begin * element, std::min(step, n - begin), deadline);
  }
  // What was measured is the first half of the first part. The second half moves as many bytes, but
  // begins only when the slowest messages of the first have arrived, and all ranks wait for that.
  if (receiving_) *receiving_ *= 2 * ((n + step - 1) / step);
}

// After the round with that hop, a rank has the hop * kFanOut blocks from its own on.
void HostCollectives::Gather(std::byte* blocks, int64_t bytes, Deadline deadline) {
  for (int64_t hop = 1; hop < size(); hop *= kFanOut) {
    for (int64_t far = hop; far < std::min<int64_t>(hop * kFanOut, size()); far += hop) {
      const int64_t n = std::min(hop, size() - far);
      const int to = RankAt(-far), from = RankAt(far);
      // After the last rank's block comes the first one's.
      const int64_t mine = std::min<int64_t>(n, size() - rank());
      const int64_t theirs = std::min<int64_t>(n, size() - from);
      Send(to, blocks + rank() * bytes, mine * bytes);
      Send(to, blocks, (n - mine) * bytes);
      Receive(from, blocks + from * bytes, theirs * bytes);
      Receive(from, blocks, (n - theirs) * bytes);
    }
    Run(deadline);
  }
}

void HostCollectives::AllReduceAtOnce(ReduceOp op, DType dtype, std::byte* data, int64_t n,
                                      Deadline deadline) {
  const int64_t bytes = n * SizeOf(dtype);
  std::byte* const blocks = Scratch(bytes);
  if (bytes > 0) std::memcpy(blocks + rank() * bytes, data, static_cast<size_t>(bytes));
  Gather(blocks, bytes, deadline);
  std::vector<const void*> inputs;
  for (int p = 0; p < size(); ++p) inputs.push_back(blocks + p * bytes);
  ReduceInOrder(op, dtype, inputs, data, n);
}

void HostCollectives::AllReduceInParts(ReduceOp op, DType dtype, std::byte* data, int64_t n,
                                       Deadline deadline) {
  const int64_t element = SizeOf(dtype);
  const Range own = PartOf(n, size(), rank());
  std::byte* const mine = data + own.begin * element;
  std::byte* const scratch = Scratch(own.count * element);
  std::vector<const void*> inputs;
  for (int p = 0; p < size(); ++p) {
    std::byte* const from_p = scratch + p * own.count * element;
    inputs.push_back(p == rank() ? mine : from_p);
    if (p == rank()) continue;
    const Range part = PartOf(n, size(), p);
    Send(p, data + part.begin * element, part.count * element);
    Receive(p, from_p, own.count * element);
  }
  Run(deadline);
  ReduceInOrder(op, dtype, inputs, mine, own.count);
  for (int p = 0; p < size(); ++p) {
    if (p == rank()) continue;
    const Range part = PartOf(n, size(), p);
    Send(p, mine, own.count * element);
    Receive(p, data + part.begin * element, part.count * element);
  }
  Run(deadline);
}

void HostCollectives::ReduceScatter(ReduceOp op, DType dtype, const void* input, void* output,
                                    int64_t n, Deadline deadline) {
  const int64_t element = SizeOf(dtype);
  const auto* const in = static_cast<const std::byte*>(input);
  auto* const out = static_cast<std::byte*>(output);
  const int64_t step = kChunk / element;
  for (int64_t begin = 0; begin < n; begin += step) {
    const int64_t count = std::min(step, n - begin), bytes = count * element;
    std::byte* const scratch = Scratch(bytes);
    std::vector<const void*> inputs;
    for (int p = 0; p < size(); ++p) {
      const std::byte* const to_p = in + (p * n + begin) * element;
      inputs.push_back(p == rank() ? to_p : scratch + p * bytes);
      if (p == rank()) continue;
      Send(p, to_p, bytes);
      Receive(p, scratch + p * bytes, bytes);
    }
    Run(deadline);
    ReduceInOrder(op, dtype, inputs, out + begin * element, count);
  }
}

void HostCollectives::AllGather(DType dtype, const void* input, void* output, int64_t n,
                                Deadline deadline) {
  auto* const blocks = static_cast<std::byte*>(output);
  const int64_t bytes = n * SizeOf(dtype);
  // The input may be that block.
  if (bytes > 0) std::memmove(blocks + rank() * bytes, input, static_cast<size_t>(bytes));
  Gather(blocks, bytes, deadline);
}

void HostCollectives::Broadcast(void* data, int64_t bytes, int root, Deadline deadline) {
  auto* const all = static_cast<std::byte*>(data);
  const bool in_parts = size() > 2 && bytes > kAtOnce;
  // Every rank passes on a part, so the root sends the bytes once or twice, not W - 1 times.
  const auto part = [&](int p) { return in_parts ? PartOf(bytes, size(), p) : Range{0, bytes}; };
  for (int p = 0; p < size(); ++p) {
    if (rank() == root && p != root) Send(p, all + part(p).begin, part(p).count);
  }
  const Range mine = part(rank());
  if (rank() != root) Receive(root, all + mine.begin, mine.count);
  Run(deadline);
  if (!in_parts) return;
  for (int p = 0; p < size(); ++p) {
    if (p == rank()) continue;
    if (p != root) Send(p, all + mine.begin, mine.count);
    if (rank() != root) Receive(p, all + part(p).begin, part(p).count);
  }
  Run(deadline);
}

void HostCollectives::AllToAll(DType dtype, const void* input,
                               std::span<const int64_t> input_counts, void* output,
                               std::span<const int64_t> output_counts, Deadline deadline) {
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  for (int p = 0; p < size(); ++p) {
    const int64_t give = input_counts[static_cast<size_t>(p)] * SizeOf(dtype);
    const int64_t take = output_counts[static_cast<size_t>(p)] * SizeOf(dtype);
    if (p == rank()) {
      if (give > 0) std::memcpy(out, in, static_cast<size_t>(give));
    } else {
      Send(p, in, give);
      Receive(p, out, take);
    }
    in += give;
    out += take;
  }
  Run(deadline);
}

void HostCollectives::Exchange(std::span<const Transport::Outgoing> outgoing,
                               std::span<const Transport::Incoming> incoming, Deadline deadline) {
  for (const auto& message : outgoing) Send(message.peer, message.data, message.bytes);
  for (const auto& message : incoming) Receive(message.peer, message.data, message.bytes);
  Run(deadline);
}

}  // namespace lockstep::dist
