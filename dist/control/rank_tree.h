// The tree along which ranks pass control messages.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::dist {

// Pure arithmetic: a rank's parent is the rank with its lowest nonzero digit, in base `fan_out`,
// set to 0. So the subtree of a rank is a run of consecutive ranks, which are often on one machine;
// a path has as many steps as the size has digits, and rank 0 has at most fan_out - 1 children for
// each digit. With up to fan_out ranks, all others are children of rank 0. With fan_out 4:
//
//   0 -+- 1, 2, 3
//      +- 4 --- 5, 6, 7
//      +- 8 --- 9, 10, 11
//      +- 12 -- 13, 14, 15
//      +- 16 -+- 17, 18, 19
//             +- 20 -- 21, 22, 23 ...
class RankTree {
 public:
  static constexpr int kFanOut = 16;

  // Throws ArgumentError unless size >= 1 and fan_out >= 2.
  explicit RankTree(int size, int fan_out = kFanOut);

  int size() const { return size_; }
  // -1 for rank 0.
  int Parent(int rank) const;
  // Ascending.
  std::vector<int> Children(int rank) const;
  // The subtree of `rank`, itself included, is [rank, End(rank)).
  int End(int rank) const;
  // The neighbour of `rank` on the way to another rank.
  int Next(int rank, int to) const;

 private:
  // The place value of the lowest nonzero digit; for rank 0 a power that is at least the size.
  int64_t Place(int rank) const;

  int size_, fan_out_;
};

}  // namespace lockstep::dist
