// Byte pair merges: the inner loop of a byte-level BPE tokenizer.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace lockstep::data {

// A merge replaces two adjacent tokens by one. Earlier merges take precedence.
struct BpeMerge {
  int32_t left;
  int32_t right;
  int32_t result;
};

// Applies merges to a piece: repeatedly merges the leftmost occurrence of the pair with the
// earliest merge, until no adjacent pair has one (Sennrich et al., arXiv 1508.07909). Ids are >= 0,
// and no pair has two merges. Thread-safe.
class BpeMerger {
 public:
  explicit BpeMerger(std::span<const BpeMerge> merges);

  // Replaces `ids` by the result of all merges. Short pieces are scanned, in O(n^2) with a small
  // constant; long ones use a heap, in O(n log n), so that no input is slow.
  void Apply(std::vector<int32_t>* ids) const;

 private:
  static constexpr int32_t kNone = INT32_MAX;
  struct Entry {
    uint64_t pair;
    int32_t rank = kNone;
    int32_t result;
  };

  // The pair's entry, with rank kNone if it has no merge.
  const Entry& Find(int32_t left, int32_t right) const;
  void Scan(std::vector<int32_t>* ids) const;
  void UseHeap(std::vector<int32_t>* ids) const;

  std::vector<Entry> table_;  // open addressing, linear probing, at most half full
  int shift_ = 0;             // 64 - log2(table_.size())
};

}  // namespace lockstep::data
