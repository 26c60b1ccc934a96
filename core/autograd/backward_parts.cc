#include "core/autograd/backward_parts.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

void VisitReachable(const Tensor& root, std::unordered_set<Node*>& seen,
                    std::vector<std::shared_ptr<Node>>& nodes) {
  if (!root.autograd() || !root.autograd()->node) return;
  std::vector<std::shared_ptr<Node>> stack = {root.autograd()->node};
  while (!stack.empty()) {
    std::shared_ptr<Node> node = std::move(stack.back());
    stack.pop_back();
    if (!seen.insert(node.get()).second) continue;
    for (const Edge& edge : node->inputs()) {
      if (edge.node && !seen.contains(edge.node.get())) stack.push_back(edge.node);
    }
    nodes.push_back(std::move(node));
  }
}

void OrderLeaves(std::span<const Tensor> roots, BackwardOrder& order) {
  const auto& nodes = order.nodes;
  std::unordered_set<Leaf*> seen;
  auto see = [&](const std::shared_ptr<Leaf>& leaf, int64_t at) {
    if (!leaf || !seen.insert(leaf.get()).second) return;
    order.leaves.push_back(leaf);
    order.last_use.push_back(at);
  };
  for (int64_t i = static_cast<int64_t>(nodes.size()) - 1; i >= 0; --i) {
    const auto& inputs = nodes[i]->inputs();
    for (auto edge = inputs.rbegin(); edge != inputs.rend(); ++edge) see(edge->leaf, i);
  }
  for (const Tensor& root : roots) {
    if (root.autograd()) see(root.autograd()->leaf, -1);
  }
  std::reverse(order.leaves.begin(), order.leaves.end());
  std::reverse(order.last_use.begin(), order.last_use.end());
}

// Identifies this thread.
const void* ThisThread() {
  thread_local const char address = 0;
  return &address;
}

}  // namespace

BackwardOrder OrderBackward(std::span<const Tensor> roots) {
  BackwardOrder order;
  std::unordered_set<Node*> seen;
  for (const Tensor& root : roots) VisitReachable(root, seen, order.nodes);
  std::sort(order.nodes.begin(), order.nodes.end(),
            [](const auto& a, const auto& b) { return a->sequence() > b->sequence(); });
  OrderLeaves(roots, order);
  return order;
}

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

// Delegates, so that the destructor releases what was claimed before an error.
LeafClaims::LeafClaims(const std::vector<std::shared_ptr<Leaf>>& leaves) : LeafClaims() {
  for (const auto& leaf : leaves) {
    const void* owner = nullptr;
    if (leaf->in_backward_of_.compare_exchange_strong(owner, ThisThread(),
                                                      std::memory_order_acquire)) {
      claimed_.push_back(leaf);
      continue;
    }
    LS_CHECK(owner == ThisThread(), "another thread is in a Backward of '", leaf->name(),
             "', and one of the two would lose gradients: run one after the other, or give each "
             "thread its own model");
  }
}

LeafClaims::~LeafClaims() {
  for (const auto& leaf : claimed_) {
    leaf->in_backward_of_.store(nullptr, std::memory_order_release);
  }
}

}  // namespace lockstep
