// Which ranges of nodes (BackwardRange) a backward has begun and not ended.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "core/autograd/node.h"

namespace lockstep {

class BackwardRanges {
 public:
  // Begins the ranges of the next node that have not begun.
  void Begin(const std::vector<std::shared_ptr<const BackwardRange>>& of_node);
  // Ends those that no node with a sequence of at most `sequence` belongs to.
  void End(uint64_t sequence);

 private:
  std::vector<std::shared_ptr<const BackwardRange>> active_;  // the next one to end is the last
  std::unordered_set<const BackwardRange*> begun_;
};

}  // namespace lockstep
