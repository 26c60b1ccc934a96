#include "core/broadcast.h"

#include <vector>

#include "core/slots.h"

namespace lockstep {
namespace {

// Dimensions [begin, end).
struct Run {
  int begin, end;
};

// The runs of neighbouring dimensions along which `from` expands to `to`.
std::vector<Run> ExpandedRuns(const Shape& from, const Shape& to) {
  const int lead = to.ndim() - from.ndim();
  std::vector<Run> runs;
  for (int i = 0; i < to.ndim(); ++i) {
    const int64_t own = i < lead ? 1 : from[i - lead];
    if (own == to[i]) continue;
    if (!runs.empty() && runs.back().end == i) {
      runs.back().end = i + 1;
    } else {
      runs.push_back({i, i + 1});
    }
  }
  return runs;
}

}  // namespace

Shape BroadcastShape(const char* op, const Shape& a, const Shape& b) {
  Shape shape = a.ndim() >= b.ndim() ? a : b;
  const Shape& shorter = a.ndim() >= b.ndim() ? b : a;
  const int lead = shape.ndim() - shorter.ndim();
  for (int i = 0; i < shorter.ndim(); ++i) {
    int64_t& size = shape[lead + i];
    LS_CHECK(size == shorter[i] || size == 1 || shorter[i] == 1, op, ": shapes ", a, " and ", b,
             " do not broadcast: aligned at the last dimension, sizes must be equal or 1");
    if (size == 1) size = shorter[i];
  }
  return shape;
}

void SumExpanded(const Tensor& from, double scale, const Tensor& sum, bool accumulate) {
  const Stream stream = CurrentStream(from.device());
  LS_CHECK(sum.ndim() <= from.ndim() &&
               BroadcastShape("SumExpanded", sum.shape(), from.shape()) == from.shape(),
           "SumExpanded: ", sum.Describe(), " does not expand to ", from.Describe());
  std::vector<Run> runs = ExpandedRuns(sum.shape(), from.shape());
  if (runs.empty()) runs.push_back({0, 0});  // one term for each sum
  Tensor rest = from;
  for (size_t i = runs.size(); i-- > 0;) {  // the last run first
    const auto [begin, end] = runs[i];
    int64_t outer = 1, reduced = 1, inner = 1;
    Shape summed = rest.shape();
    for (int d = 0; d < rest.ndim(); ++d) {
      (d < begin ? outer : d < end ? reduced : inner) *= rest.dim(d);
      if (d >= begin && d < end) summed[d] = 1;
    }
    const Tensor blocks = rest.View({outer, reduced, inner});
    if (i == 0) {
      reduce_sum_slot(stream, blocks, scale, sum.View({outer, inner}), accumulate);
    } else {
      const DType dtype = AccumulationDType(rest.dtype());
      rest = Tensor::Empty(summed, dtype, rest.device());
      reduce_sum_slot(stream, blocks, 1, rest.View({outer, inner}), false);
    }
  }
}

}  // namespace lockstep
