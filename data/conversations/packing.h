// Which conversations share a row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

// Distributes items of the given lengths over rows of `capacity`, by best-fit decreasing: from the
// longest to the shortest, each goes into the fullest row where it fits, or else into a new one. A
// pure function of its arguments: the rows' items ascend, and so do the rows by their first items.
// Takes O(n log n). Throws ArgumentError for an item that is empty or longer than a row.
std::vector<std::vector<int64_t>> PackRows(std::span<const int64_t> lengths, int64_t capacity);

}  // namespace lockstep::data
