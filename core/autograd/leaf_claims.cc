#include "core/autograd/leaf_claims.h"

#include "core/error.h"

namespace lockstep {
namespace {

// Identifies this thread.
const void* ThisThread() {
  thread_local const char address = 0;
  return &address;
}

}  // namespace

// Delegates, so that the destructor releases what was claimed before an error.
LeafClaims::LeafClaims(const std::vector<std::shared_ptr<Leaf>>& leaves) : LeafClaims() {
  for (const auto& leaf : leaves) {
    const void* owner = nullptr;
    if (leaf->in_backward_of_.compare_exchange_strong(owner, ThisThread(),
                                                      std::memory_order_acquire)) {
      claimed_.push_back(leaf);
      continue;
    }
    LS_CHECK(owner == ThisThread(), "another thread is in a Backward of '", leaf->name(),
             "', and one of the two would lose gradients: run one after the other, or give each "
             "thread its own model");
  }
}

LeafClaims::~LeafClaims() {
  for (const auto& leaf : claimed_) {
    leaf->in_backward_of_.store(nullptr, std::memory_order_release);
  }
}

}  // namespace lockstep
