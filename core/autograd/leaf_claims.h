// One backward at a time adds to a leaf's gradient.
#pragma once

#include <memory>
#include <vector>

#include "core/autograd/leaf.h"

namespace lockstep {

// Claims the leaves for this thread's backward during its lifetime: two concurrent backwards would
// lose additions, so a leaf of another thread's is an ArgumentError. A nested backward of the same
// thread (recomputation) shares its claims.
class LeafClaims {
 public:
  explicit LeafClaims(const std::vector<std::shared_ptr<Leaf>>& leaves);
  ~LeafClaims();
  LeafClaims(const LeafClaims&) = delete;
  LeafClaims& operator=(const LeafClaims&) = delete;

 private:
  LeafClaims() = default;

  std::vector<std::shared_ptr<Leaf>> claimed_;
};

}  // namespace lockstep
