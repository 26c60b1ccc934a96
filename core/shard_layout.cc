#include "core/shard_layout.h"

#include <algorithm>
#include <set>
#include <span>

namespace lockstep {
namespace {

// `of`: the shape of what is cut.
std::vector<int64_t> Segments(const ShardCut& cut, const Shape& of) {
  return cut.segments.empty() ? std::vector{of[cut.dim]} : cut.segments;
}

// The part of a segment: where it begins, and its size.
struct Stretch {
  int64_t begin, size;
};
Stretch PartOf(const ShardCut& cut, int64_t segment) {
  const int64_t most = cut.part_size > 0 ? cut.part_size : segment / cut.parts;
  return {cut.part * most, std::min(most, segment - cut.part * most)};
}

// The shape of the part that the cuts give.
Shape CutShape(std::span<const ShardCut> cuts, const Shape& whole) {
  Shape shape = whole;
  for (const ShardCut& cut : cuts) shape[cut.dim] = PartOf(cut, shape[cut.dim]).size;
  return shape;
}

void CheckCut(const ShardCut& cut, const Shape& whole) {
  LS_CHECK(cut.dim >= 0 && cut.dim < whole.ndim(), "a parameter of shape ", whole,
           " has no dimension ", cut.dim, " to cut along '", cut.axis, "'");
  LS_CHECK(cut.part >= 0 && cut.part < cut.parts, "part ", cut.part, " of ", cut.parts, " along '",
           cut.axis, "' does not exist");
  if (const int64_t most = cut.part_size; most > 0) {
    LS_CHECK(cut.segments.empty() && most * (cut.parts - 1) < whole[cut.dim] &&
                 whole[cut.dim] <= most * cut.parts,
             "dimension ", cut.dim, " of a parameter of shape ", whole, " cannot be cut along '",
             cut.axis, "' into ", cut.parts, " parts of ", most, " and what is left");
    return;
  }
  int64_t total = 0;
  for (int64_t size : Segments(cut, whole)) {
    LS_CHECK(size >= 0 && size % cut.parts == 0, "dimension ", cut.dim, " of a parameter of shape ",
             whole, " cannot be cut along '", cut.axis, "': ", size,
             " elements do not divide into ", cut.parts, " equal parts");
    total += size;
  }
  LS_CHECK(total == whole[cut.dim], "the segments along '", cut.axis, "' add up to ", total,
           ", but dimension ", cut.dim, " of a parameter of shape ", whole, " has ", whole[cut.dim],
           " elements");
}

}  // namespace

void ShardLayout::Check(const Shape& whole) const {
  std::set<std::string> axes;
  std::set<int> dims;
  for (size_t c = 0; c < cuts.size(); ++c) {
    const ShardCut& cut = cuts[c];
    CheckCut(cut, CutShape(std::span(cuts).first(c), whole));
    LS_CHECK(axes.insert(cut.axis).second, "a parameter is cut along '", cut.axis, "' twice");
    LS_CHECK(dims.insert(cut.dim).second || cut.segments.empty(), "dimension ", cut.dim,
             " of a parameter is cut twice, the second time, along '", cut.axis,
             "', by segments, which it does not have any more");
  }
  if (!range) return;
  LS_CHECK(!axes.contains(range->axis), "a parameter is cut along '", range->axis, "' twice");
  const int64_t numel = CutShape(cuts, whole).numel();
  LS_CHECK(0 <= range->begin && range->begin <= range->end && range->end <= numel, "the range [",
           range->begin, ", ", range->end, ") along '", range->axis, "' does not lie within the ",
           numel, " elements of a parameter of shape ", whole);
}

Shape ShardLayout::PartShape(const Shape& whole) const {
  return range ? Shape{range->end - range->begin} : CutShape(cuts, whole);
}

ShardLayout::Run ShardLayout::RunAt(const Shape& whole, int64_t i) const {
  const Shape shape = CutShape(cuts, whole), strides = whole.ContiguousStrides();
  int64_t rest = i + (range ? range->begin : 0);
  // Inside of the innermost cut everything is consecutive.
  Run run{0, shape.numel() - rest};
  bool inside = true;
  for (int dim = whole.ndim(); dim-- > 0;) {
    const int64_t at = rest % shape[dim];
    rest /= shape[dim];
    int64_t source = at, rows = -1;  // how many follow each other; -1: the dimension is not cut
    for (size_t c = cuts.size(); c-- > 0;) {
      const ShardCut& cut = cuts[c];
      if (cut.dim != dim || cut.parts == 1) continue;
      int64_t before = 0, begin = 0;  // elements of earlier segments in the part, in what is cut
      for (int64_t size : Segments(cut, CutShape(std::span(cuts).first(c), whole))) {
        const Stretch own = PartOf(cut, size);
        if (source < before + own.size) {
          const int64_t left = before + own.size - source;
          rows = rows < 0 ? left : std::min(rows, left);
          source = begin + own.begin + source - before;
          break;
        }
        before += own.size;
        begin += size;
      }
    }
    if (inside && rows >= 0) run.count = rows * strides[dim] - run.first;
    inside &= rows < 0;
    run.first += source * strides[dim];
  }
  return run;
}

}  // namespace lockstep
