#include "dist/data_parallel/fixed_order.h"

#include <bit>
#include <string>

#include "core/error.h"

namespace lockstep::dist {
namespace {

bool IsPowerOfTwo(int64_t n) { return std::has_single_bit(static_cast<uint64_t>(n)); }

// Whether each of `ranks` ranks has a subtree of the sum over `leaves` micro-batches.
bool Fits(int64_t leaves, int64_t ranks) {
  return leaves % ranks == 0 && (ranks == 1 || IsPowerOfTwo(leaves / ranks));
}

// "3 ranks (4 micro-steps each) or 6 ranks (2 micro-steps each)": the nearest below and above.
std::string NearestThatFit(int64_t leaves, int64_t ranks) {
  std::string text;
  const auto add = [&](int64_t n) {
    if (!text.empty()) text += " or ";
    text += StrCat(n, n == 1 ? " rank (" : " ranks (", leaves / n, " micro-step",
                   leaves / n == 1 ? "" : "s", n == 1 ? ")" : " each)");
  };
  int64_t below = ranks, above = ranks;
  while (!Fits(leaves, below)) --below;  // 1 fits
  add(below);
  while (!Fits(leaves, above)) ++above;  // as many as there are leaves fit
  add(above);
  return text;
}

int64_t ReverseBits(int64_t value, int bits) {
  int64_t reversed = 0;
  for (int i = 0; i < bits; ++i) reversed |= (value >> i & 1) << (bits - 1 - i);
  return reversed;
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

FixedOrder::FixedOrder(int64_t ranks, int64_t accum) : ranks_(ranks) {
  LS_CHECK(ranks >= 1 && accum >= 1, "the ordered sum needs at least 1 rank and 1 micro-step, got ",
           ranks, " and ", accum);
  const int64_t leaves = ranks * accum;
  LS_CHECK(Fits(leaves, ranks), "the ordered sum over ", leaves,
           " micro-batches cannot be cut into ", ranks, " ranks of ", accum,
           " micro-steps: what a rank adds up by itself would not be a ",
           "subtree of the sum, and the bits would depend on the number of ranks. For the same ",
           leaves, " micro-batches use ", NearestThatFit(leaves, ranks),
           "; or choose a power of two of micro-steps; or dist.reduction=fast");
  rank_adds_ = FixedOrderAdds(ranks);
  Plan(accum);
}

// A binary counter: buffers wait in a stack, and micro-step t of a subtree takes as many of them up
// as t has trailing ones. Addition commutes, so the newest buffer takes up the older one; hence the
// sum ends where the last gradients were written, and nothing is moved.
void FixedOrder::Plan(int64_t accum) {
  const int levels = std::countr_zero(static_cast<uint64_t>(accum));
  const int64_t size = int64_t{1} << levels;  // of a subtree
  const int64_t subtrees = accum / size;      // added in order; several only on a single rank
  std::vector<int64_t> waiting, free;
  for (int64_t j = 0; j < subtrees; ++j) {
    for (int64_t t = 0; t < size; ++t) {
      if (free.empty()) free.push_back(buffers_++);
      MicroStep step{.index = j + subtrees * ReverseBits(t, levels), .buffer = free.back()};
      free.pop_back();
      const bool subtree_done = t == size - 1;
      int64_t merges = std::countr_one(static_cast<uint64_t>(t));
      if (subtree_done && j > 0) ++merges;  // into the total
      for (; merges > 0; --merges) {
        step.take_up.push_back(waiting.back());
        free.push_back(waiting.back());
        waiting.pop_back();
      }
      waiting.push_back(step.buffer);
      micro_steps_.push_back(std::move(step));
    }
  }
  LS_INVARIANT(waiting.size() == 1 && waiting[0] == micro_steps_.back().buffer);
}

}  // namespace lockstep::dist
