#include "data/conversations/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace lockstep::data {

std::vector<std::vector<int64_t>> PackRows(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](int64_t item) { return lengths[item]; });
  std::vector<std::vector<int64_t>> rows;
  std::set<std::pair<int64_t, int64_t>> space;  // (what is left, row)
  for (const int64_t item : order) {
    const int64_t length = lengths[item];
    LS_CHECK(length >= 1 && length <= capacity, "item ", item, " of length ", length,
             " does not fit into a row of ", capacity);
    auto best = space.lower_bound({length, 0});
    int64_t left = capacity, row = std::ssize(rows);
    if (best == space.end()) {
      rows.emplace_back();
    } else {
      std::tie(left, row) = *best;
      space.erase(best);
    }
    rows[static_cast<size_t>(row)].push_back(item);
    if (left > length) space.emplace(left - length, row);
  }
  for (auto& row : rows) std::ranges::sort(row);
  std::ranges::sort(rows);
  return rows;
}

}  // namespace lockstep::data
