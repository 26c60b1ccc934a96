// Where the parameters of a unit lie in one range of elements, which is sharded across ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/shard_layout.h"

namespace lockstep::dist {

// Parameters one after another, in a range that is cut into equal shards, one per rank. A cut
// within a parameter lies at a multiple of kGradNormChunk of its elements, so that each rank sums
// whole chunks of the gradient norm, which then has the bits of a single process. A shard begins
// with a parameter that would not fit before it in whole chunks, so shards end in padding.
struct FlatLayout {
  std::vector<int64_t> offsets;  // of each parameter; aligned for vector loads
  int64_t shard = 0;             // elements of each rank's part
  int64_t ranks = 1;
  int64_t numel() const { return ranks * shard; }
  // The elements of the parameter (its index, its size) that lie in a rank's shard.
  ShardRange RangeOf(size_t parameter, int64_t numel, int64_t rank) const;
};

// With the smallest shard that is a multiple of `multiple`. A pure function.
FlatLayout PlanFlat(std::span<const int64_t> numels, int64_t ranks, int64_t multiple);

}  // namespace lockstep::dist
