#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>

#include "core/error.h"

namespace lockstep::data {
namespace {

// Pieces longer than this use the heap.
constexpr size_t kScanLimit = 96;

uint64_t Key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t Hash(uint64_t key) {
  key ^= key >> 29;
  return key * 0x9e3779b97f4a7c15u;
}

}  // namespace

BpeMerger::BpeMerger(std::span<const BpeMerge> merges) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(2 * merges.size(), 2));
  shift_ = 64 - std::countr_zero(capacity);
  table_.resize(capacity);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const BpeMerge& merge = merges[rank];
    const uint64_t key = Key(merge.left, merge.right);
    size_t slot = Hash(key) >> shift_;
    while (table_[slot].rank != kNone) {
      LS_INVARIANT(table_[slot].pair != key, "merge ", rank, " repeats a pair");
      slot = (slot + 1) & (capacity - 1);
    }
    table_[slot] = {key, static_cast<int32_t>(rank), merge.result};
  }
}

const BpeMerger::Entry& BpeMerger::Find(int32_t left, int32_t right) const {
  const uint64_t key = Key(left, right);
  size_t slot = Hash(key) >> shift_;
  while (table_[slot].rank != kNone && table_[slot].pair != key) {
    slot = (slot + 1) & (table_.size() - 1);
  }
  return table_[slot];
}

void BpeMerger::Apply(std::vector<int32_t>* ids) const {
  if (ids->size() <= kScanLimit) {
    Scan(ids);
  } else {
    UseHeap(ids);
  }
}

void BpeMerger::Scan(std::vector<int32_t>* ids) const {
  std::vector<int32_t>& v = *ids;
  size_t n = v.size();
  int32_t rank[kScanLimit];    // of the pair (v[i], v[i + 1])
  int32_t result[kScanLimit];  // the token it becomes
  const auto look_up = [&](size_t i) {
    const Entry& entry = Find(v[i], v[i + 1]);
    rank[i] = entry.rank;
    result[i] = entry.result;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    const size_t best = std::min_element(rank, rank + n - 1) - rank;
    if (rank[best] == kNone) break;
    v[best] = result[best];
    std::copy(v.begin() + best + 2, v.begin() + n, v.begin() + best + 1);
    --n;
    if (best + 1 < n) {
      std::copy(rank + best + 2, rank + n, rank + best + 1);
      std::copy(result + best + 2, result + n, result + best + 1);
      look_up(best);
    }
    if (best > 0) look_up(best - 1);
  }
  v.resize(n);
}

void BpeMerger::UseHeap(std::vector<int32_t>* ids) const {
  std::vector<int32_t>& v = *ids;
  const auto n = static_cast<int64_t>(v.size());
  // The surviving tokens form a list; a token that was merged into its left neighbour has id -1.
  std::vector<int64_t> previous(n), next(n);
  for (int64_t i = 0; i < n; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
  }
  struct Candidate {
    int32_t rank;
    int64_t position;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::vector<Candidate> candidates;
  for (int64_t i = 0; i + 1 < n; ++i) {
    const int32_t rank = Find(v[i], v[i + 1]).rank;
    if (rank != kNone) candidates.push_back({rank, i});
  }
  std::priority_queue heap(std::greater<Candidate>(), std::move(candidates));
  const auto consider = [&](int64_t i) {
    if (i < 0 || next[i] >= n) return;
    const int32_t rank = Find(v[i], v[next[i]]).rank;
    if (rank != kNone) heap.push({rank, i});
  };
  while (!heap.empty()) {
    const auto [rank, i] = heap.top();
    heap.pop();
    if (v[i] < 0 || next[i] >= n) continue;
    const Entry& entry = Find(v[i], v[next[i]]);
    if (entry.rank != rank) continue;  // a neighbour has changed since
    v[i] = entry.result;
    v[next[i]] = -1;
    next[i] = next[next[i]];
    if (next[i] < n) previous[next[i]] = i;
    consider(previous[i]);
    consider(i);
  }
  std::erase(v, -1);
}

}  // namespace lockstep::data
