// The fixed-order sum: gradients whose bits depend on the micro-batches of a step and on nothing
// else, neither on the number of ranks nor on how many micro-batches each of them has.
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

// How a rank takes part in the sum over the M = accum * ranks micro-batches of a step, of which
// micro-step a of rank r is leaf a * ranks + r. A rank adds up its own leaves; for that they must
// be a subtree of the sum, which they are if accum is a power of two, or if there is one rank.
// Visited in bit-reversed order, log2(accum) partial sums wait at most.
class FixedOrder {
 public:
  // Throws ArgumentError, with the nearest number of ranks that works, if a rank's leaves are no
  // subtree.
  FixedOrder(int64_t ranks, int64_t accum);

  // One micro-step of a rank: it writes its gradients to `buffer`; afterwards the buffers in
  // `take_up` are added to that, first to last, and are free again. After the last micro-step the
  // rank's sum is in the last one's buffer.
  struct MicroStep {
    int64_t index = 0;  // among the rank's accum micro-batches
    int64_t buffer = 0;
    std::vector<int64_t> take_up{};
  };
  // In the order in which they run.
  const std::vector<MicroStep>& micro_steps() const { return micro_steps_; }
  int64_t buffers() const { return buffers_; }
  int64_t ranks() const { return ranks_; }

  // How the ranks' sums are added: leaf r is rank r's.
  const std::vector<AddPair>& rank_adds() const { return rank_adds_; }

 private:
  void Plan(int64_t accum);

  int64_t ranks_;
  int64_t buffers_ = 0;
  std::vector<MicroStep> micro_steps_;
  std::vector<AddPair> rank_adds_;
};

}  // namespace lockstep::dist
