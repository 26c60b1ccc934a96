// Brings the parts of sharded parameters together outside of forward and backward.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "core/part_exchange.h"
#include "dist/process_group.h"
#include "dist/shard/flat_layout.h"

namespace lockstep::dist {

// For clipping, optimizers that want whole matrices, and checkpoints that are not written in parts.
class FlatExchange : public PartExchange {
 public:
  // A null group means a single rank.
  explicit FlatExchange(ProcessGroup* group) : group_(group) {}
  void Add(const Parameter& parameter, std::shared_ptr<const FlatLayout> layout, size_t index) {
    places_[&parameter] = {std::move(layout), index};
  }
  // From here on the others can't be reached, and calls throw.
  void Close() { closed_ = true; }

  Tensor Gather(const Parameter& parameter, const Tensor& part) override;
  void Sum(const Tensor& values) override;

 private:
  struct Place {
    std::shared_ptr<const FlatLayout> layout;
    size_t index = 0;  // in the layout
  };
  void CheckOpen() const;

  ProcessGroup* const group_;
  bool closed_ = false;
  std::unordered_map<const Parameter*, Place> places_;
};

}  // namespace lockstep::dist
