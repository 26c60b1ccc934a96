// Brings the parts of sharded parameters together outside of forward and backward.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "dist/mesh_parts.h"
#include "dist/shard/flat_layout.h"

namespace lockstep::dist {

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
