// Where sharded parameters lie, and how their parts are brought together outside of forward and
// backward.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/shard_layout.h"
#include "dist/mesh_parts.h"

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

// The ranges of parameters, or of their tensor-parallel parts, that are sharded across ranks.
class FlatExchange : public PartsAxis {
 public:
  // A null group means a single rank.
  explicit FlatExchange(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  // `group`: the ranks across which the parameter is sharded, a subset of the exchange's; null: a
  // single one. It lives as long as the exchange is open.
  void Add(const Parameter& parameter, std::shared_ptr<const FlatLayout> layout, size_t index,
           ProcessGroup* group) {
    places_[&parameter] = {std::move(layout), index, group};
  }
  // From here on the others can't be reached, and calls throw.
  void Close() {
    closed_ = true;
    group_.reset();
  }

  ProcessGroup* group() const override {
    CheckOpen();
    return group_.get();
  }
  bool Divides(const Parameter& parameter) const override { return places_.contains(&parameter); }
  Tensor Gather(const Parameter& parameter, const Tensor& part) override;
  // How many elements of all these parameters each rank of its group has. Shards end in padding, so
  // some have a few percent more than others.
  std::vector<int64_t> ElementsByRank() const;

 private:
  struct Place {
    std::shared_ptr<const FlatLayout> layout;
    size_t index = 0;  // in the layout
    ProcessGroup* group = nullptr;
  };
  void CheckOpen() const;

  std::shared_ptr<ProcessGroup> group_;
  bool closed_ = false;
  std::unordered_map<const Parameter*, Place> places_;
};

}  // namespace lockstep::dist
