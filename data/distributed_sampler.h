// Distributes the items of a data set over the ranks of a data-parallel run.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "data/permutation.h"

namespace lockstep::data {

// What happens if the number of items is not a multiple of the number of ranks.
enum class Remainder {
  kPad,     // the epoch's first items are used twice: ranks have equal shares, and no item is
            // missed
  kDrop,    // the epoch's last items are left out: ranks have equal shares, and no item is used
            // twice
  kUneven,  // some ranks have one item more: for evaluation, where the sum must be exact
};

// The items of one rank: a pure function of (seed, epoch, rank, position), so any position can be
// reached directly. Each epoch draws a new order, in which the ranks' shares are disjoint (except
// for padding) and complete (except for what is dropped). Position i of rank r is item i * ranks +
// r of that order, so the ranks together go through the same items however many there are.
class DistributedSampler {
 public:
  struct Options {
    uint64_t seed = 0;
    bool shuffle = true;  // otherwise in their original order
    Remainder remainder = Remainder::kPad;
  };

  // Throws ArgumentError unless items >= 1 and 0 <= rank < ranks, and for kDrop if there are fewer
  // items than ranks.
  DistributedSampler(int64_t items, int64_t ranks, int64_t rank, const Options& options);

  // The number of this rank's items in an epoch.
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
  // Those at the positions first, ..., first + n - 1: i64 [n], for ops::IndexSelect.
  Tensor Items(int64_t first, int64_t n) const;

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
