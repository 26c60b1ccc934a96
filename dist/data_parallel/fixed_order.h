// The fixed-order sum: gradients whose bits depend on the micro-batches of a step and on nothing
// else, neither on the number of ranks nor on who computes which micro-batch.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::dist {

// to += from
using AddPair = std::pair<int64_t, int64_t>;

// The order in which n leaves are added into leaf 0: while the number of leaves is even, the lower
// half takes the upper half up, leaf j += leaf j + n / 2; what is left is added in its order.
std::vector<AddPair> FixedOrderAdds(int64_t n);

// The micro-batches of a step that each rank computes, in the order in which it does.
using Assignment = std::vector<std::vector<int64_t>>;

// Both give each rank as many micro-batches as any other, or one fewer. They throw ArgumentError
// unless there is one for each rank.
//
// Micro-batch m is rank m % ranks's.
Assignment AssignInTurn(int64_t micro_batches, int64_t ranks);
// The leaves of the fixed-order sum from left to right, cut into a run for each rank: so a rank
// adds up by itself as much as it can. Rank 0 has micro-batch 0. Where micro_batches / ranks is a
// power of two, micro-batch m is rank m % ranks's. The odd factor of micro_batches should be small:
// of what is added in order, ranks other than the first cannot add anything up by themselves.
Assignment AssignSubtrees(int64_t micro_batches, int64_t ranks);

// How ranks sum the gradients of their micro-batches in the fixed order. Of these each rank adds up
// those that fill a subtree of the sum; it sends the sums of the largest ones, its terms. Rows, the
// terms of all ranks, are added by everyone alike. As an example, 12 micro-batches on 2 ranks by
// AssignSubtrees; in parentheses what is added up before it is sent:
//
//   rank 0: (0 6 3 9) (1 7)    rank 1: (4 10) (2 8 5 11)
//   rows: 0 3 6 9 | 4 10 | 1 7 | 2 5 8 11    adds: row 2 += row 1, row 0 += row 2, row 0 += row 3
struct FixedOrderPlan {
  // The rank writes the gradients of `micro_batch` to `buffer`; afterwards the buffers in `take_up`
  // are added to that, first to last, and are free again.
  struct MicroStep {
    int64_t micro_batch = 0;
    int64_t buffer = 0;
    std::vector<int64_t> take_up{};
  };
  struct Rank {
    std::vector<MicroStep> micro_steps;
    std::vector<int64_t> terms;  // buffers; the last one is that of the last micro-step
    int64_t buffers = 0;
  };
  std::vector<Rank> ranks;
  // The first terms of all ranks come first, in the order of the ranks, then the second ones of
  // those that have two, and so on.
  int64_t rows = 0;
  std::vector<AddPair> adds;  // of rows
  int64_t sum = 0;            // the row that has it in the end
};

// A pure function. Throws ArgumentError unless each of 0 to M - 1 is assigned once.
FixedOrderPlan PlanFixedOrder(const Assignment& assignment);

}  // namespace lockstep::dist
