#include "dist/shard/flat_exchange.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/parameter.h"
#include "core/round_up.h"
#include "kernels/global_norm/global_norm.h"

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

namespace {

constexpr int64_t kAlignment = 128;  // elements: 256 bytes in bf16

// Fills in the offsets; false if the shard is too small.
bool Place(std::span<const int64_t> numels, FlatLayout& layout) {
  layout.offsets.clear();
  int64_t at = 0;
  for (const int64_t n : numels) {
    const int64_t room = layout.shard - at % layout.shard;  // to the next cut
    if (n > room) {
      // Further cuts are in the right places, too, only if shards consist of whole chunks.
      const bool may_be_cut = layout.shard % kGradNormChunk == 0;
      if (!may_be_cut && n > layout.shard) return false;
      at += may_be_cut ? room % kGradNormChunk : room;
    }
    layout.offsets.push_back(at);
    at = RoundUp(at + n, kAlignment);
  }
  return at <= layout.numel();
}

}  // namespace

ShardRange FlatLayout::RangeOf(size_t parameter, int64_t numel, int64_t rank) const {
  const int64_t first = rank * shard - offsets[parameter];
  return {"fsdp", std::clamp<int64_t>(first, 0, numel),
          std::clamp<int64_t>(first + shard, 0, numel)};
}

FlatLayout PlanFlat(std::span<const int64_t> numels, int64_t ranks, int64_t multiple) {
  LS_CHECK(ranks >= 1 && multiple >= 1, "a flat layout needs at least 1 rank, got ", ranks,
           ", and a positive multiple, got ", multiple);
  FlatLayout layout{.offsets = {}, .ranks = ranks};
  const int64_t step = std::lcm(multiple, kAlignment);
  const int64_t total = std::accumulate(numels.begin(), numels.end(), int64_t{1});
  layout.shard = RoundUp((total + ranks - 1) / ranks, step);
  while (!Place(numels, layout)) layout.shard += step;
  return layout;
}

}  // namespace lockstep::dist
