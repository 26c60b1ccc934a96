// Shares the items of a data set out over the ranks of a data-parallel run.
#pragma once

#include <cstdint>

#include "data/permutation.h"

namespace lockstep::data {

// What happens where the items are no multiple of the ranks.
enum class Remainder {
  kPad,     // the first items of the epoch are used twice: every rank has as many, all are seen
  kDrop,    // the last items of the epoch are left out: every rank has as many, none is seen twice
  kUneven,  // neither: some ranks have one item more. For evaluation, where the sum must be exact
};

// The items of one rank: a pure function of (seed, epoch, rank, position), so that any place can be
// reached at once. In each epoch the ranks' shares are disjoint (but for padding) and complete (but
// for what is dropped), in an order that each epoch draws anew. Position i of rank r is item
// i * ranks + r of that order, so together the ranks go through the same items at any number of
// ranks.
class DistributedSampler {
 public:
  struct Options {
    uint64_t seed = 0;
    bool shuffle = true;  // else in their order
    Remainder remainder = Remainder::kPad;
  };

  // Throws ArgumentError unless items >= 1 and 0 <= rank < ranks, and for kDrop if there are fewer
  // items than ranks.
  DistributedSampler(int64_t items, int64_t ranks, int64_t rank, const Options& options);

  // Items of this rank in an epoch.
  int64_t size() const { return size_; }
  // The order of one epoch, epoch >= 0.
  class Epoch;
  Epoch epoch(int64_t epoch) const;

 private:
  int64_t items_, ranks_, rank_;
  Options options_;
  int64_t size_;
};

class DistributedSampler::Epoch {
 public:
  // The item at `position`, 0 <= position < size().
  int64_t operator[](int64_t position) const;

 private:
  friend class DistributedSampler;
  Epoch(const DistributedSampler& sampler, int64_t epoch);

  const DistributedSampler sampler_;
  const Permutation permutation_;
};

inline DistributedSampler::Epoch DistributedSampler::epoch(int64_t epoch) const {
  return {*this, epoch};
}

}  // namespace lockstep::data
