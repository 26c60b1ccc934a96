// Which part of a parameter a rank holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/shape.h"

namespace lockstep {

// A dimension that is split into parts across the ranks of a mesh axis.
struct ShardCut {
  std::string axis;             // of the mesh: "tp"
  int dim = 0;                  // of the whole parameter
  int64_t parts = 1, part = 0;  // how many ranks there are; which of them this is
  // The sizes of the segments of the dimension, each of which is cut: queries, keys and values of a
  // fused matrix, gate and up. Empty: the dimension is one segment.
  std::vector<int64_t> segments;
  // The size of a part of a dimension of one segment; the last part has what is left. 0: the parts
  // of each segment are equal.
  int64_t part_size = 0;
};

// Elements [begin, end), in row-major order, of the part that the cuts give: the overlap of one
// rank's share of a block, whose parameters lie one after another, with this parameter. May be
// empty.
struct ShardRange {
  std::string axis;
  int64_t begin = 0, end = 0;
};

// Cuts, each along an axis of its own, and then perhaps a range of what they give. By default the
// parameter is whole. A second cut of a dimension cuts the part that the first one gives, and has
// no segments. `whole` is the shape of the unsharded parameter.
struct ShardLayout {
  std::vector<ShardCut> cuts;
  std::optional<ShardRange> range;

  bool is_whole() const { return cuts.empty() && !range; }
  // Throws ArgumentError saying what does not fit: an axis cut twice, segments that do not add up
  // to their dimension or do not divide into parts, or are those of a second cut, parts of a size
  // that leaves none or too much for the last, a range that is too long.
  void Check(const Shape& whole) const;
  // The shape of the part: [end - begin] if there is a range; otherwise it has as many dimensions
  // as `whole`.
  Shape PartShape(const Shape& whole) const;

  // Elements [i, i + count) of the part, in row-major order, are elements [first, first + count) of
  // the whole; count is at least 1, and as large as it can be without looking at the range.
  struct Run {
    int64_t first, count;
  };
  Run RunAt(const Shape& whole, int64_t i) const;
  // Calls f(i, first, count) for each run of elements [begin, end) of the part.
  template <class F>
  void ForEachRun(const Shape& whole, int64_t begin, int64_t end, const F& f) const {
    for (int64_t i = begin; i < end;) {
      const Run run = RunAt(whole, i);
      const int64_t count = std::min(run.count, end - i);
      f(i, run.first, count);
      i += count;
    }
  }
};

}  // namespace lockstep
