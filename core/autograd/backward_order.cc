#include "core/autograd/backward_order.h"

#include <algorithm>
#include <unordered_set>

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

}  // namespace lockstep
