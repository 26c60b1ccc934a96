#include "dist/data_parallel/fixed_order.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace lockstep::dist {
namespace {

// The sum as a binary tree: nodes 0 to n - 1 are its leaves, node n + i is the result of add i. -1:
// none.
struct Tree {
  std::vector<int64_t> parent, sibling;
};

Tree MakeTree(const std::vector<AddPair>& adds) {
  const int64_t leaves = std::ssize(adds) + 1;
  Tree tree;
  tree.parent.assign(2 * leaves - 1, -1);
  tree.sibling = tree.parent;
  std::vector<int64_t> node_of(leaves);
  std::iota(node_of.begin(), node_of.end(), 0);
  int64_t node = leaves;
  for (const auto& [to, from] : adds) {
    const int64_t a = node_of[to], b = node_of[from];
    tree.sibling[a] = b;
    tree.sibling[b] = a;
    tree.parent[a] = tree.parent[b] = node;
    node_of[to] = node++;
  }
  return tree;
}

// A rank's micro-steps, and the nodes that are its terms.
std::pair<FixedOrderPlan::Rank, std::vector<int64_t>> PlanRank(
    const Tree& tree, const std::vector<int64_t>& micro_batches) {
  FixedOrderPlan::Rank rank;
  std::vector<int64_t> free, nodes;  // nodes[i] waits in buffer rank.terms[i]
  for (const int64_t m : micro_batches) {
    if (free.empty()) free.push_back(rank.buffers++);
    FixedOrderPlan::MicroStep step{.micro_batch = m, .buffer = free.back()};
    free.pop_back();
    // Addition commutes, so older sums can be added to the newest buffer, and nothing is moved.
    int64_t node = m;
    while (true) {
      const auto other = std::find(nodes.begin(), nodes.end(), tree.sibling[node]);
      if (other == nodes.end()) break;
      const auto buffer = rank.terms.begin() + (other - nodes.begin());
      step.take_up.push_back(*buffer);
      free.push_back(*buffer);
      rank.terms.erase(buffer);
      nodes.erase(other);
      node = tree.parent[node];
    }
    nodes.push_back(node);
    rank.terms.push_back(step.buffer);
    rank.micro_steps.push_back(std::move(step));
  }
  return {std::move(rank), std::move(nodes)};
}

void CheckCounts(int64_t micro_batches, int64_t ranks) {
  LS_CHECK(ranks >= 1 && micro_batches >= ranks, "a step of ", micro_batches,
           " micro-batches cannot be distributed over ", ranks,
           " ranks, each of which needs at least one: use fewer ranks, or more micro-batches "
           "(ReducerOptions::micro_batches)");
}

}  // namespace

std::vector<AddPair> FixedOrderAdds(int64_t n) {
  LS_CHECK(n >= 1, "a sum needs at least 1 term, got ", n);
  std::vector<AddPair> adds;
  for (; n % 2 == 0; n /= 2) {
    for (int64_t j = 0; j < n / 2; ++j) adds.emplace_back(j, j + n / 2);
  }
  for (int64_t j = 1; j < n; ++j) adds.emplace_back(0, j);
  return adds;
}

Assignment AssignInTurn(int64_t micro_batches, int64_t ranks) {
  CheckCounts(micro_batches, ranks);
  Assignment assignment(ranks);
  for (int64_t m = 0; m < micro_batches; ++m) assignment[m % ranks].push_back(m);
  return assignment;
}

Assignment AssignSubtrees(int64_t micro_batches, int64_t ranks) {
  CheckCounts(micro_batches, ranks);
  std::vector<std::vector<int64_t>> leaves(micro_batches);  // of each subtree, from left to right
  for (int64_t m = 0; m < micro_batches; ++m) leaves[m] = {m};
  for (const auto& [to, from] : FixedOrderAdds(micro_batches)) {
    leaves[to].insert(leaves[to].end(), leaves[from].begin(), leaves[from].end());
  }
  Assignment assignment;
  const auto at = [&](int64_t r) { return leaves[0].begin() + r * micro_batches / ranks; };
  for (int64_t r = 0; r < ranks; ++r) assignment.emplace_back(at(r), at(r + 1));
  std::ranges::sort(assignment, {}, [](const auto& run) { return std::ranges::min(run); });
  return assignment;
}

FixedOrderPlan PlanFixedOrder(const Assignment& assignment) {
  std::vector<int64_t> all;
  for (const auto& of_rank : assignment) all.insert(all.end(), of_rank.begin(), of_rank.end());
  std::ranges::sort(all);
  for (int64_t m = 0; m < std::ssize(all); ++m) {
    LS_CHECK(all[m] == m, "each micro-batch from 0 to ", all.size() - 1,
             " must be assigned to one rank, and ", std::min(m, all[m]), " is not");
  }
  const std::vector<AddPair> adds = FixedOrderAdds(std::ssize(all));
  const Tree tree = MakeTree(adds);
  FixedOrderPlan plan;
  std::vector<std::vector<int64_t>> nodes;  // of each rank's terms
  size_t rounds = 0;
  for (const auto& of_rank : assignment) {
    auto [rank, of_terms] = PlanRank(tree, of_rank);
    rounds = std::max(rounds, of_terms.size());
    plan.ranks.push_back(std::move(rank));
    nodes.push_back(std::move(of_terms));
  }
  std::vector<int64_t> row_of(tree.parent.size(), -1);  // of each node; -1: within a term
  for (size_t i = 0; i < rounds; ++i) {
    for (const auto& of_rank : nodes) {
      if (i < of_rank.size()) row_of[of_rank[i]] = plan.rows++;
    }
  }
  // Sums made by a rank already have a row; the rest is added in the sum's own order.
  std::vector<int64_t> node_of(all);
  int64_t node = std::ssize(all);
  for (const auto& [to, from] : adds) {
    const int64_t a = row_of[node_of[to]], b = row_of[node_of[from]];
    if (a >= 0 && b >= 0) {
      plan.adds.emplace_back(a, b);
      row_of[node] = a;
    }
    node_of[to] = node++;
  }
  plan.sum = row_of.back();
  return plan;
}

}  // namespace lockstep::dist
