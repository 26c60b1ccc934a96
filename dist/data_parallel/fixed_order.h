// The fixed-order sum: gradients whose bits depend only on the micro-batches of a step, not on the
// number of ranks or on which rank computes which micro-batch.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::dist {

// to += from
using AddPair = std::pair<int64_t, int64_t>;

// The order in which n leaves are added into leaf 0: while the number of leaves is even, the upper
// half is added to the lower, leaf j += leaf j + n / 2; the leaves that remain are added in order.
std::vector<AddPair> FixedOrderAdds(int64_t n);

// The micro-batches of a step that each rank computes, in order.
using Assignment = std::vector<std::vector<int64_t>>;

// Both give each rank as many micro-batches as any other, or one fewer. They throw ArgumentError
// unless there is at least one for each rank.
//
// Assigns micro-batch m to rank m % ranks.
Assignment AssignInTurn(int64_t micro_batches, int64_t ranks);
// Cuts the leaves of the fixed-order sum, from left to right, into one run per rank, so that each
// rank adds as much as possible locally. Rank 0 gets micro-batch 0. If micro_batches / ranks is a
// power of two, micro-batch m goes to rank m % ranks. The odd factor of micro_batches should be
// small: of the leaves that are added in order, ranks other than the first cannot add any locally.
Assignment AssignSubtrees(int64_t micro_batches, int64_t ranks);

// How ranks sum the gradients of their micro-batches in the fixed order. Each rank adds its
// micro-batches that fill a subtree of the sum, and sends the sums of the largest subtrees, its
// terms. All ranks add the rows, which are the terms of all ranks, in the same way. As an example,
// 12 micro-batches on 2 ranks by AssignSubtrees, with the local sums in parentheses:
//
//   rank 0: (0 6 3 9) (1 7)    rank 1: (4 10) (2 8 5 11)
//   rows: 0 3 6 9 | 4 10 | 1 7 | 2 5 8 11    adds: row 2 += row 1, row 0 += row 2, row 0 += row 3
struct FixedOrderPlan {
  // The rank writes the gradients of `micro_batch` to `buffer`; afterwards the buffers in `take_up`
  // are added to it, first to last, and are free again.
  struct MicroStep {
    int64_t micro_batch = 0;
    int64_t buffer = 0;
    std::vector<int64_t> take_up{};
  };
  struct Rank {
    std::vector<MicroStep> micro_steps;
    std::vector<int64_t> terms;  // buffers; the last is the last micro-step's
    int64_t buffers = 0;
  };
  std::vector<Rank> ranks;
  // The first terms of all ranks, in rank order, then the second terms of those that have two, and
  // so on.
  int64_t rows = 0;
  std::vector<AddPair> adds;  // of rows
  int64_t sum = 0;            // the row that finally holds the sum
};

// A pure function. Throws ArgumentError unless each of 0 to M - 1 is assigned once.
FixedOrderPlan PlanFixedOrder(const Assignment& assignment);

}  // namespace lockstep::dist
