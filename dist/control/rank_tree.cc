#include "dist/control/rank_tree.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::dist {

RankTree::RankTree(int size, int fan_out) : size_(size), fan_out_(fan_out) {
  LS_CHECK(size >= 1, "a tree of ranks needs at least one rank, got ", size);
  LS_CHECK(fan_out >= 2, "a tree of ranks needs a fan-out of at least 2, got ", fan_out);
}

int64_t RankTree::Place(int rank) const {
  int64_t place = 1;
  while (rank == 0 ? place < size_ : rank / place % fan_out_ == 0) place *= fan_out_;
  return place;
}

int RankTree::Parent(int rank) const {
  if (rank == 0) return -1;
  const int64_t place = Place(rank);
  return static_cast<int>(rank - rank / place % fan_out_ * place);
}

std::vector<int> RankTree::Children(int rank) const {
  std::vector<int> children;
  const int64_t end = Place(rank);
  for (int64_t place = 1; place < end; place *= fan_out_) {
    for (int digit = 1; digit < fan_out_ && rank + digit * place < size_; ++digit) {
      children.push_back(static_cast<int>(rank + digit * place));
    }
  }
  return children;
}

int RankTree::End(int rank) const {
  return static_cast<int>(std::min<int64_t>(size_, rank + Place(rank)));
}

int RankTree::Next(int rank, int to) const {
  if (to < rank || to >= End(rank)) return Parent(rank);
  // The child is `to` without the digits below its highest one that differs from those of `rank`.
  int64_t place = 1;
  while ((to - rank) / place >= fan_out_) place *= fan_out_;
  return static_cast<int>(rank + (to - rank) / place * place);
}

}  // namespace lockstep::dist
