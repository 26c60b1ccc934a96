#include "core/autograd/backward_ranges.h"

#include <algorithm>
#include <utility>

namespace lockstep {

void BackwardRanges::Begin(const std::vector<std::shared_ptr<const BackwardRange>>& of_node) {
  // Modules attach their ranges to a node innermost first, and the outermost begins first.
  for (auto range = of_node.rbegin(); range != of_node.rend(); ++range) {
    if (!begun_.insert(range->get()).second) continue;
    if ((*range)->before) (*range)->before();
    if ((*range)->after) active_.push_back(*range);
  }
  std::stable_sort(active_.begin(), active_.end(), [](const auto& a, const auto& b) {
    return a->first_sequence < b->first_sequence;
  });
}

void BackwardRanges::End(uint64_t sequence) {
  while (!active_.empty() && active_.back()->first_sequence > sequence) {
    const auto range = std::move(active_.back());
    active_.pop_back();
    range->after();
  }
}

}  // namespace lockstep
