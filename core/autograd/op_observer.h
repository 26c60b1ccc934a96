// Who sees the operations of a thread: traces of what they compute.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace lockstep {

class Node;

// What it is told of it must read at once, and not hold: an operation may write to memory that
// nobody else has. Operations that it calls itself are not told.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  // An operation has given `outputs`, also in a forward that runs again to recompute. `node` is
  // what was recorded for its backward. Null: nothing was, in a training step whose gradients come
  // from elsewhere, as those of a forward that will be recomputed.
  virtual void OnForward(const Node* /*node*/, std::span<const Tensor* const> /*inputs*/,
                         std::span<Tensor* const> /*outputs*/) {}
  // A node's backward begins; and has ended, with the gradients of the inputs that need one, as far
  // as they have been added up. Between the two there may be forwards, which recompute.
  virtual void OnBackward(const Node& /*node*/, std::span<const Tensor> /*of_outputs*/) {}
  virtual void OnGradients(const Node& /*node*/, std::span<const Tensor> /*of_inputs*/) {}
  // Random numbers of a site (DistinctSite) are about to be drawn.
  virtual void OnRandom(uint64_t /*seed*/, uint64_t /*site*/) {}
};

// While it lives, the observer, which outlives it, is told of this thread's operations.
class ObserveOps {
 public:
  explicit ObserveOps(OpObserver* observer);
  ~ObserveOps();
  ObserveOps(const ObserveOps&) = delete;
  ObserveOps& operator=(const ObserveOps&) = delete;

 private:
  OpObserver* const observer_;
};

namespace internal {
// Whether any operation is told to anybody now; calls tell(observer) for each who is told.
bool OpsAreObserved();
void TellObservers(void (*tell)(OpObserver&, const void*), const void* what);
template <class F>
void TellOfOp(const F& tell) {
  if (!OpsAreObserved()) return;
  TellObservers([](OpObserver& o, const void* f) { (*static_cast<const F*>(f))(o); }, &tell);
}
}  // namespace internal

}  // namespace lockstep
