#include "dist/shard/flat_layout.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/round_up.h"
#include "kernels/global_norm/global_norm.h"

namespace lockstep::dist {
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
