#include "dist/shard/flat_exchange.h"

#include <algorithm>

#include "core/parameter.h"

namespace lockstep::dist {

void FlatExchange::CheckOpen() const {
  LS_CHECK(!closed_,
           "the FullyShard that shards this model's parameters has been destroyed: keep it alive "
           "as long as the model is used");
}

std::vector<int64_t> FlatExchange::ElementsByRank() const {
  CheckOpen();
  const int64_t ranks = SizeOf(group_.get());
  std::vector<int64_t> elements(static_cast<size_t>(ranks), 0);
  for (const auto& [parameter, place] : places_) {
    const ShardLayout cuts{.cuts = parameter->layout().cuts};
    const int64_t numel = cuts.PartShape(parameter->logical_shape()).numel();
    // So many neighbours have other experts, which are cut alike.
    const int64_t neighbours = ranks / place.layout->ranks;
    for (int64_t r = 0; r < ranks; ++r) {
      const ShardRange range = place.layout->RangeOf(place.index, numel, r / neighbours);
      elements[static_cast<size_t>(r)] += range.end - range.begin;
    }
  }
  return elements;
}

// The parts are padded to the longest.
Tensor FlatExchange::Gather(const Parameter& parameter, const Tensor& part) {
  CheckOpen();
  const auto& [layout, index, group] = places_.at(&parameter);
  ShardLayout cuts = parameter.layout();
  cuts.range.reset();
  const Shape shape = cuts.PartShape(parameter.logical_shape());
  const int64_t numel = shape.numel();
  std::vector<ShardRange> ranges;
  int64_t longest = 0;
  for (int64_t r = 0; r < layout->ranks; ++r) {
    ranges.push_back(layout->RangeOf(index, numel, r));
    longest = std::max(longest, ranges.back().end - ranges.back().begin);
  }
  const Tensor rows = Tensor::Empty({layout->ranks, longest}, part.dtype(), part.device());
  const auto row = [&](int64_t r) {
    const ShardRange& range = ranges[static_cast<size_t>(r)];
    return rows.Slice(0, r, r + 1).View({longest}).Slice(0, 0, range.end - range.begin);
  };
  const int64_t mine = RankIn(group);
  row(mine).CopyFrom(part.Detach());
  if (group) {
    group
        ->AllGather(rows.Slice(0, mine, mine + 1), rows,
                    StrCat("the whole of '", parameter.name(), "'"))
        ->Wait();
  }
  const Tensor whole = Tensor::Empty(shape, part.dtype(), part.device());
  const Tensor flat = whole.View({numel});
  for (int64_t r = 0; r < layout->ranks; ++r) {
    const ShardRange& range = ranges[static_cast<size_t>(r)];
    if (range.begin < range.end) flat.Slice(0, range.begin, range.end).CopyFrom(row(r));
  }
  return whole;
}

}  // namespace lockstep::dist
